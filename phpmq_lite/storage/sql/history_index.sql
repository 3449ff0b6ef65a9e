-- Fills history_place, history_number and trace_place after messages have been stored.

-- part: placed
-- The last offset that is indexed.
coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0)

-- part: slice
-- The next :count offsets.  Rows may be missing among them.
"offset" > {placed} AND "offset" <= {placed} + :count

-- name: progress
-- The next rows to index.
-- columns: last indexed offset, first and last offset after it (NULL: none); last indexed seq of
--   live messages, first and last live seq after it (NULL: none)
-- index: INTEGER PRIMARY KEY
SELECT
  {placed},
  (SELECT "offset" FROM history WHERE "offset" > {placed} ORDER BY "offset" LIMIT 1),
  (SELECT "offset" FROM history WHERE "offset" > {placed} ORDER BY "offset" DESC LIMIT 1),
  traced.upto,
  (SELECT seq FROM message WHERE seq > traced.upto ORDER BY seq LIMIT 1),
  (SELECT seq FROM message WHERE seq > traced.upto ORDER BY seq DESC LIMIT 1)
FROM (
  SELECT coalesce((SELECT value FROM counter WHERE name = 'traced_upto'), 0) AS upto
) AS traced;

-- name: index_outcomes
-- Inserts rows in the order of the table, so that each table page is written only once.
-- parameters: count (of offsets)
-- index: INTEGER PRIMARY KEY
INSERT INTO history_place (block, queue_id, outcome, "offset")
SELECT "offset" >> 16, queue_id, outcome, "offset" FROM history NOT INDEXED
WHERE {slice}
ORDER BY 1, 2, 3, 4;

-- name: count_indexed
-- Adds the rows of a slice to the totals, and advances ``placed_upto``; the last statement of a
-- slice.  Updating the totals in every commit would cost one more page each time.
-- parameters: count (of offsets)
-- index: INTEGER PRIMARY KEY
INSERT INTO counter (name, value)
WITH slice ("rows", bytes, deleted_rows, deleted_bytes) AS MATERIALIZED (
  SELECT count(*) FILTER (WHERE outcome <> 5), sum(size) FILTER (WHERE outcome <> 5),
    count(*) FILTER (WHERE outcome = 5), sum(size) FILTER (WHERE outcome = 5)
  FROM history NOT INDEXED WHERE {slice}
)
SELECT name, value FROM (
  SELECT 'history_rows' AS name, "rows" AS value FROM slice
  UNION ALL SELECT 'history_bytes', bytes FROM slice
  UNION ALL SELECT 'deleted_rows', deleted_rows FROM slice
  UNION ALL SELECT 'deleted_bytes', deleted_bytes FROM slice
  UNION ALL SELECT 'placed_upto', min(:count, (SELECT max("offset") FROM history) - {placed})
) WHERE value <> 0
ON CONFLICT (name) DO UPDATE SET value = value + excluded.value;

-- name: index_numbers
-- Indexes settled messages by number.
-- parameters: count (of offsets)
-- index: INTEGER PRIMARY KEY
INSERT INTO history_number (block, queue_id, seq, "offset", outcome)
SELECT seq >> 16, queue_id, seq, "offset", outcome FROM history NOT INDEXED
WHERE {slice}
ORDER BY 1, 2, 3, 4;

-- name: index_traces
-- Indexes settled messages by trace; some were already indexed while live.
-- parameters: count (of offsets)
-- index: INTEGER PRIMARY KEY
INSERT OR IGNORE INTO trace_place (block, trace_id, seq)
SELECT seq >> 14, trace_id, seq FROM history NOT INDEXED
WHERE {slice} AND trace_id IS NOT NULL
ORDER BY 1, 2, 3;

-- name: next_live_numbers
-- Last seq and number of the next live messages.
-- parameters: after (seq, exclusive); limit
-- columns: seq, number
-- index: INTEGER PRIMARY KEY
SELECT max(seq), count(*) FROM (
  SELECT seq FROM message WHERE seq > :after ORDER BY seq LIMIT :limit
);

-- name: index_live_traces
-- Indexes live messages by trace.
-- parameters: after (seq, exclusive); upto (inclusive)
-- index: INTEGER PRIMARY KEY
INSERT OR IGNORE INTO trace_place (block, trace_id, seq)
SELECT seq >> 14, trace_id, seq FROM message NOT INDEXED
WHERE seq > :after AND seq <= :upto AND trace_id IS NOT NULL
ORDER BY 1, 2, 3;

-- name: advance_traced
-- parameters: upto (seq, inclusive)
INSERT INTO counter (name, value) VALUES ('traced_upto', :upto)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
