-- part: tail
-- Rows not counted yet because they are not indexed, usually from the last few seconds.
(
  SELECT outcome, size FROM history NOT INDEXED
  WHERE "offset" > coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0)
  ORDER BY "offset" LIMIT 50000
)

-- name: totals
-- Sizes of the history, separately for deleted messages and all other messages.
-- columns: rows, bytes, deleted rows, deleted bytes
SELECT
  coalesce((SELECT value FROM counter WHERE name = 'history_rows'), 0)
    + count(*) FILTER (WHERE outcome <> 5),
  coalesce((SELECT value FROM counter WHERE name = 'history_bytes'), 0)
    + coalesce(sum(size) FILTER (WHERE outcome <> 5), 0),
  coalesce((SELECT value FROM counter WHERE name = 'deleted_rows'), 0)
    + count(*) FILTER (WHERE outcome = 5),
  coalesce((SELECT value FROM counter WHERE name = 'deleted_bytes'), 0)
    + coalesce(sum(size) FILTER (WHERE outcome = 5), 0)
FROM {tail};

-- name: pages
-- Pages of the database file, not including the write-ahead log.
-- columns: pages, free pages, page size in bytes
SELECT (SELECT page_count FROM pragma_page_count()),
  (SELECT freelist_count FROM pragma_freelist_count()), (SELECT page_size FROM pragma_page_size());

-- name: audit
-- columns: at_ms of the oldest row of the audit log, or NULL; number of rows
SELECT (SELECT at_ms FROM audit ORDER BY audit_id LIMIT 1),
  coalesce((SELECT value FROM counter WHERE name = 'audit_rows'), 0)
    + coalesce((SELECT value FROM counter WHERE name = 'audit_refusals'), 0)
    + (SELECT count(*) FROM audit
       WHERE audit_id > coalesce((SELECT value FROM counter WHERE name = 'audit_counted'), 0));

-- name: schema
-- columns: number of migrations applied
SELECT user_version FROM pragma_user_version();
