-- How large things are: for the system page and the metrics.

-- name: counters
-- columns: name, value
SELECT name, value FROM counter;

-- name: pages
-- Of the database file, without the write-ahead log.
-- columns: pages, free pages, bytes of a page
SELECT (SELECT page_count FROM pragma_page_count()),
  (SELECT freelist_count FROM pragma_freelist_count()), (SELECT page_size FROM pragma_page_size());

-- name: history
-- The ends of the history; NULL where it is empty.
-- columns: settled_at of the oldest row, offset of the newest
SELECT (SELECT settled_at FROM history ORDER BY "offset" LIMIT 1),
  (SELECT seq FROM sqlite_sequence WHERE name = 'history');

-- name: audit
-- The ends of the audit; NULL where it is empty.
-- columns: at_ms of the oldest row, first and last number
SELECT (SELECT at_ms FROM audit ORDER BY audit_id LIMIT 1),
  (SELECT min(audit_id) FROM audit), (SELECT max(audit_id) FROM audit);

-- name: schema
-- columns: migrations applied
SELECT user_version FROM pragma_user_version();

