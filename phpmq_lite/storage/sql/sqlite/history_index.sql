-- Fills history_run and trace_place after messages have been stored.

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

-- part: columns
block, queue_id, outcome, first_offset, length, seq_block, first_seq

-- part: continues
-- Whether a message continues the run of the message before it.  The limits of a run let readers
-- find the runs that begin before a range and reach into it.
m.queue_id = before.queue_id AND m.outcome = before.outcome AND m.seq > before.seq
    AND m.seq >> 12 = before.seq >> 12 AND m."offset" >> 10 = before."offset" >> 10

-- name: count_runs
-- How many of the first 64 messages of a slice do not continue the run of the message before.
-- parameters: count (of offsets)
-- columns: messages
-- index: INTEGER PRIMARY KEY
SELECT count(*)
FROM history AS m NOT INDEXED JOIN history AS before ON before."offset" = m."offset" - 1
WHERE m."offset" > {placed} AND m."offset" <= {placed} + min(:count, 64) AND NOT ({continues});

-- name: index_singly
-- Makes a run of each message, which takes less time where most runs would be short.
-- parameters: count (of offsets)
-- index: INTEGER PRIMARY KEY
INSERT INTO history_run ({columns})
SELECT "offset" >> 16, queue_id, outcome, "offset", 1, seq >> 16, seq
FROM history NOT INDEXED WHERE {slice};

-- name: index_runs
-- A run ends before the next message that does not continue it.
-- parameters: count (of offsets)
-- index: INTEGER PRIMARY KEY
INSERT INTO history_run ({columns})
SELECT "offset" >> 16, queue_id, outcome, "offset", coalesce(next_offset, (
    SELECT 1 + max("offset") FROM history WHERE "offset" <= {placed} + :count
  )) - "offset", seq >> 16, seq
FROM (
  SELECT m."offset", m.queue_id, m.outcome, m.seq,
    lead(m."offset") OVER (ORDER BY m."offset") AS next_offset
  FROM history AS m NOT INDEXED LEFT JOIN history AS before
    ON before."offset" = m."offset" - 1 AND before."offset" > {placed}
  WHERE m."offset" > {placed} AND m."offset" <= {placed} + :count AND ({continues}) IS NOT TRUE
);

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

-- name: index_traces
-- twin: index_live_traces
-- Indexes settled or live messages by trace; some settled ones were already indexed while live.
-- parameters: count (of offsets); of live messages: after (seq, exclusive), upto (inclusive)
-- index: INTEGER PRIMARY KEY
INSERT OR IGNORE INTO trace_place (block, trace_id, seq)
SELECT seq >> 14, trace_id, seq FROM {history | message} NOT INDEXED
WHERE {{slice} | seq > :after AND seq <= :upto} AND trace_id IS NOT NULL
ORDER BY 1, 2, 3;

-- name: next_live_numbers
-- Last seq and number of the next live messages.
-- parameters: after (seq, exclusive); limit
-- columns: seq, number
-- index: INTEGER PRIMARY KEY
SELECT max(seq), count(*) FROM (
  SELECT seq FROM message WHERE seq > :after ORDER BY seq LIMIT :limit
);

-- name: advance_traced
-- parameters: upto (seq, inclusive)
INSERT INTO counter (name, value) VALUES ('traced_upto', :upto)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
