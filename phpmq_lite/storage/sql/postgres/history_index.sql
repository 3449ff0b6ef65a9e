-- Counts settled messages after they are stored; regular indexes find them.

-- name: count_indexed
-- Adds the next :count offsets to the totals, and advances ``placed_upto``.
WITH placed (upto) AS (
  SELECT coalesce(counter_value('placed_upto'), 0)
), slice (last_offset, "rows", bytes, deleted_rows, deleted_bytes) AS MATERIALIZED (
  SELECT max("offset"), count(*) FILTER (WHERE outcome <> 5), sum(size) FILTER (WHERE outcome <> 5),
    count(*) FILTER (WHERE outcome = 5), sum(size) FILTER (WHERE outcome = 5)
  FROM history, placed WHERE "offset" > upto AND "offset" <= upto + :count
)
SELECT FROM (
  SELECT 'history_rows' AS name, "rows" AS value FROM slice
  UNION ALL SELECT 'history_bytes', bytes FROM slice
  UNION ALL SELECT 'deleted_rows', deleted_rows FROM slice
  UNION ALL SELECT 'deleted_bytes', deleted_bytes FROM slice
  UNION ALL SELECT 'placed_upto', last_offset - upto FROM slice, placed
) AS totals, change_counter(name, value::bigint, true) WHERE value <> 0;

-- name: waiting
-- columns: number of offsets that are not counted yet
SELECT coalesce((SELECT max("offset") FROM history), 0)
  - coalesce(counter_value('placed_upto'), 0);
