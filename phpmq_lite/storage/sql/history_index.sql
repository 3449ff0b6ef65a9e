-- Fills history_place, history_number and trace_place after messages have been stored.

-- name: progress
-- Progress of the index and the next rows to index.
-- columns: last indexed offset, first and last offset after it (NULL: none); last indexed seq of
--   live messages, first and last live seq after it (NULL: none)
-- index: INTEGER PRIMARY KEY
SELECT
  placed.upto,
  (SELECT "offset" FROM history WHERE "offset" > placed.upto ORDER BY "offset" LIMIT 1),
  (SELECT "offset" FROM history WHERE "offset" > placed.upto ORDER BY "offset" DESC LIMIT 1),
  traced.upto,
  (SELECT seq FROM message WHERE seq > traced.upto ORDER BY seq LIMIT 1),
  (SELECT seq FROM message WHERE seq > traced.upto ORDER BY seq DESC LIMIT 1)
FROM (
  SELECT coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0) AS upto
) AS placed, (
  SELECT coalesce((SELECT value FROM counter WHERE name = 'traced_upto'), 0) AS upto
) AS traced;

-- name: index_outcomes
-- Inserts rows in the order of the table, so that each table page is written only once.
-- parameters: after (offset, exclusive); upto (inclusive)
-- index: INTEGER PRIMARY KEY
INSERT INTO history_place (block, queue_id, outcome, "offset")
SELECT "offset" >> 16, queue_id, outcome, "offset" FROM history NOT INDEXED
WHERE "offset" > :after AND "offset" <= :upto
ORDER BY 1, 2, 3, 4;

-- name: totals_of_range
-- Amounts that the indexed rows add to the totals.
-- parameters: after (offset, exclusive); upto (inclusive)
-- columns: rows and bytes of all messages except deleted ones; rows and bytes of deleted messages
-- index: INTEGER PRIMARY KEY
SELECT count(*) FILTER (WHERE outcome <> 5), coalesce(sum(size) FILTER (WHERE outcome <> 5), 0),
  count(*) FILTER (WHERE outcome = 5), coalesce(sum(size) FILTER (WHERE outcome = 5), 0)
FROM history NOT INDEXED WHERE "offset" > :after AND "offset" <= :upto;

-- name: index_numbers
-- Indexes settled messages by number.
-- parameters: after (offset, exclusive); upto (inclusive)
-- index: INTEGER PRIMARY KEY
INSERT INTO history_number (block, queue_id, seq, "offset", outcome)
SELECT seq >> 16, queue_id, seq, "offset", outcome FROM history NOT INDEXED
WHERE "offset" > :after AND "offset" <= :upto
ORDER BY 1, 2, 3, 4;

-- name: index_traces
-- Indexes settled messages by trace; some were already indexed while live.
-- parameters: after (offset, exclusive); upto (inclusive)
-- index: INTEGER PRIMARY KEY
INSERT OR IGNORE INTO trace_place (block, trace_id, seq)
SELECT seq >> 14, trace_id, seq FROM history NOT INDEXED
WHERE "offset" > :after AND "offset" <= :upto AND trace_id IS NOT NULL
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
