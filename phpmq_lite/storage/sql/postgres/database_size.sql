-- part: tail
-- Rows not counted yet, usually from the last few seconds.
(
  SELECT outcome, size FROM history
  WHERE "offset" > coalesce(counter_value('placed_upto'), 0)
  ORDER BY "offset" LIMIT 50000
) AS tail

-- name: totals
SELECT
  coalesce(counter_value('history_rows'), 0)
    + count(*) FILTER (WHERE outcome <> 5),
  coalesce(counter_value('history_bytes'), 0)
    + coalesce(sum(size) FILTER (WHERE outcome <> 5), 0)::bigint,
  coalesce(counter_value('deleted_rows'), 0)
    + count(*) FILTER (WHERE outcome = 5),
  coalesce(counter_value('deleted_bytes'), 0)
    + coalesce(sum(size) FILTER (WHERE outcome = 5), 0)::bigint
FROM {tail};

-- name: pages
-- Pages of the database, not including the write-ahead log; free pages are not counted.
SELECT pg_database_size(current_database()) / current_setting('block_size')::bigint,
  0, current_setting('block_size')::bigint;

-- name: audit
SELECT (SELECT at_ms FROM audit ORDER BY audit_id LIMIT 1),
  coalesce(counter_value('audit_rows'), 0)
    + coalesce(counter_value('audit_refusals'), 0)
    + (SELECT count(*) FROM audit
       WHERE audit_id > coalesce(counter_value('audit_counted'), 0));

-- name: schema
SELECT coalesce(max(number), 0) AS user_version FROM migration;
