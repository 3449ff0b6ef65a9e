-- Sizes for the system page and the metrics.

-- name: counters
-- columns: name, value
SELECT name, value FROM counter;

-- name: history
-- First and last rows of the history; NULL if it is empty.
-- columns: settled_at of the oldest row, offset of the newest row
SELECT (SELECT settled_at FROM history ORDER BY "offset" LIMIT 1),
  (SELECT max("offset") FROM history);

-- name: totals
-- Sizes of the history, separately for deleted messages and all other messages; with the rows that
-- are not counted yet because they are not indexed, usually from the last few seconds.
-- columns: rows, bytes, deleted rows, deleted bytes
SELECT
  coalesce(counter_value('history_rows'), 0) + count(*) FILTER (WHERE outcome <> 5),
  coalesce(counter_value('history_bytes'), 0)
    + CAST(coalesce(sum(size) FILTER (WHERE outcome <> 5), 0) AS bigint),
  coalesce(counter_value('deleted_rows'), 0) + count(*) FILTER (WHERE outcome = 5),
  coalesce(counter_value('deleted_bytes'), 0)
    + CAST(coalesce(sum(size) FILTER (WHERE outcome = 5), 0) AS bigint)
FROM (
  SELECT outcome, size FROM history NOT INDEXED
  WHERE "offset" > coalesce(counter_value('placed_upto'), 0)
  ORDER BY "offset" LIMIT 50000
) AS tail;

-- name: audit
-- columns: at_ms of the oldest row of the audit log, or NULL; number of rows
SELECT (SELECT at_ms FROM audit ORDER BY audit_id LIMIT 1),
  coalesce(counter_value('audit_rows'), 0) + coalesce(counter_value('audit_refusals'), 0)
    + (SELECT count(*) FROM audit WHERE audit_id > coalesce(counter_value('audit_counted'), 0));
