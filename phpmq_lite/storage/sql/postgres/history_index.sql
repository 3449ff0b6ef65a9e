-- Counts settled messages after they are stored; regular indexes find them.

-- name: count_indexed
-- Adds the next :count offsets to the totals, and advances ``placed_upto``.
-- parameters: count (of offsets)
INSERT INTO counter (name, value)
WITH placed (upto) AS (
  SELECT coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0)
), slice (last_offset, "rows", bytes, deleted_rows, deleted_bytes) AS MATERIALIZED (
  SELECT max("offset"), count(*) FILTER (WHERE outcome <> 5), sum(size) FILTER (WHERE outcome <> 5),
    count(*) FILTER (WHERE outcome = 5), sum(size) FILTER (WHERE outcome = 5)
  FROM history, placed WHERE "offset" > upto AND "offset" <= upto + :count
)
SELECT name, value::bigint FROM (
  SELECT 'history_rows' AS name, "rows" AS value FROM slice
  UNION ALL SELECT 'history_bytes', bytes FROM slice
  UNION ALL SELECT 'deleted_rows', deleted_rows FROM slice
  UNION ALL SELECT 'deleted_bytes', deleted_bytes FROM slice
  UNION ALL SELECT 'placed_upto', last_offset - upto FROM slice, placed
) AS totals WHERE value <> 0
ON CONFLICT (name) DO UPDATE SET value = counter.value + excluded.value;

-- name: waiting
-- columns: number of offsets that are not counted yet
SELECT coalesce((SELECT max("offset") FROM history), 0)
  - coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0);
