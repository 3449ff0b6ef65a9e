-- Sizes for the system page and the metrics.

-- name: ends
-- columns: settled_at of the oldest settled message and offset of the newest, or NULL; at_ms of the
--   oldest audit row, or NULL; number of audit rows; number of migrations applied
SELECT (SELECT settled_at FROM history ORDER BY "offset" LIMIT 1),
  (SELECT max("offset") FROM history), (SELECT at_ms FROM audit ORDER BY audit_id LIMIT 1),
  coalesce(counter_value('audit_rows'), 0) + coalesce(counter_value('audit_refusals'), 0)
    + (SELECT count(*) FROM audit WHERE audit_id > coalesce(counter_value('audit_counted'), 0)),
  (SELECT coalesce(max(number), 0) FROM migration);

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
