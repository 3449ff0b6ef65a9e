-- part: placed
-- Up to this offset, settled messages are in history_run; the short tail above is not indexed yet.
coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0)

-- part: near_offsets
-- twin: near_numbers
-- Runs between two offsets or two numbers, in blocks that are each found from the previous block.
-- No run crosses a multiple of 1,024 offsets, or of 4,096 numbers.
{history_run.block | seq_block} IN (
  WITH RECURSIVE near (block) AS (
    SELECT (
      SELECT {block | seq_block} FROM history_run WHERE {block | seq_block} >= :low >> 16
      ORDER BY {block | seq_block} LIMIT 1)
    UNION ALL
    SELECT (
      SELECT {block | seq_block} FROM history_run WHERE {block | seq_block} > near.block
      ORDER BY {block | seq_block} LIMIT 1)
    FROM near WHERE near.block < :high >> 16
  )
  SELECT block FROM near WHERE block IS NOT NULL
) AND {
  first_offset >= :low >> 10 << 10 AND first_offset < :high AND first_offset + length - 1 > :low
  | first_seq >= :low >> 12 << 12 AND first_seq < :high}

-- part: settled_queues
-- Indexed settled messages in certain queues, by offset.
-- index: history_run USING PRIMARY KEY
SELECT m."offset" AS place, {columns}
FROM history_run CROSS JOIN history AS m
  ON m."offset" >= first_offset AND m."offset" < first_offset + length
    AND +m."offset" > :low AND +m."offset" < :high
  {join}
WHERE history_run.queue_id IN (SELECT value FROM json_each(:queues))
  AND history_run.outcome IN (SELECT value FROM json_each(:outcomes)) AND {near_offsets}

-- part: settled_tail
-- Settled messages in the tail that is not indexed yet, by offset.
SELECT m."offset" AS place, {columns}
FROM history AS m NOT INDEXED {join}
WHERE m."offset" > max(:low, {placed}) AND m."offset" < :high

-- part: settled_numbers
-- Indexed settled messages in certain queues, by number.
-- index: history_run_seq
SELECT m.seq AS place, {columns}
FROM history_run INDEXED BY history_run_seq CROSS JOIN history AS m
  ON m."offset" >= first_offset AND m."offset" < first_offset + length
    AND m.seq > :low AND m.seq < :high
  {join}
WHERE history_run.queue_id {these} AND {near_numbers}

-- part: settled_unnumbered
-- Settled messages in the tail that is not indexed yet, by number.
SELECT m.seq AS place, {columns}
FROM history AS m NOT INDEXED {join}
WHERE m."offset" > {placed} AND m.seq > :low AND m.seq < :high

-- part: traced
-- Traces of live messages are in trace_place up to this number; the short tail above is not.
coalesce((SELECT value FROM counter WHERE name = 'traced_upto'), 0)

-- part: near
-- Blocks of trace_place between two numbers, each found from the previous block.
trace_place.block IN (
  WITH RECURSIVE near (block) AS (
    SELECT (SELECT block FROM trace_place WHERE block >= :low >> 14 ORDER BY block LIMIT 1)
    UNION ALL
    SELECT (SELECT block FROM trace_place WHERE block > near.block ORDER BY block LIMIT 1)
    FROM near WHERE near.block < :high >> 14
  )
  SELECT block FROM near WHERE block IS NOT NULL
) AND trace_place.seq > :low AND trace_place.seq < :high

-- part: alive_traces
-- Live messages with certain traces, read from the trace index, by number.
-- index: trace_place USING PRIMARY KEY
SELECT m.seq AS place, {columns}
FROM trace_place CROSS JOIN message AS m ON m.seq = trace_place.seq {join}
WHERE trace_place.trace_id IN ({traces}) AND {near}

-- part: alive_untraced
-- twin: settled_untraced
-- Live or settled messages that are not indexed yet; some settled ones were indexed while live.
SELECT m.seq AS place, {columns}
FROM {message | history} AS m NOT INDEXED {join}
WHERE {m.seq > max(:low, {traced}) | m."offset" > {placed} AND m.seq > :low}
  AND m.seq < :high AND m.trace_id IN ({traces})

-- part: settled_traces
-- Indexed settled messages with certain traces, by number.
-- index: trace_place USING PRIMARY KEY
-- index: history_seq
SELECT m.seq AS place, {columns}
FROM trace_place CROSS JOIN history AS m INDEXED BY history_seq ON m.seq = trace_place.seq {join}
WHERE trace_place.trace_id IN ({traces}) AND {near} AND m."offset" <= {placed}

-- part: in_outcomes
history_run.outcome IN (SELECT value FROM json_each(:outcomes))

-- part: glob
GLOB

-- part: reason
-- For invalid envelopes, also search the detail, which is part of the dead letter.  For an original
-- message, the detail is read from its dead letter while the dead letter is live.
-- index: message_source
coalesce(m.{why} GLOB :{v}, 0) OR coalesce(m.source_reason GLOB :{v}, 0)
  OR coalesce(m.source_reason, m.{why}) IN {reasons} AND EXISTS (
    SELECT 1 FROM body AS said
    WHERE said.seq IN (
        SELECT m.seq WHERE m.source_reason IS NOT NULL
        UNION ALL
        SELECT record.seq FROM message AS record
        WHERE record.source_seq = m.seq AND record.source_reason = m.{why}
      )
      AND CASE WHEN (length(said.content) <= 16384 OR in_time())
          AND instr(said.content, x'00') = 0 AND json_valid(CAST(said.content AS TEXT))
        THEN matches_glob(CAST(substr(
          json_extract(CAST(said.content AS TEXT), '$.dead_letter.error'), 1, 512) AS BLOB), :{v})
        ELSE 0 END
  )

-- part: text
-- instr compares the whole text at each byte, so large bodies use has_text instead.
CASE WHEN m.size <= 16384 THEN instr(b.content, :{v}) > 0 ELSE has_text(b.content, :{v}) END

-- part: is_json
-- A malformed body must not fail the search.  SQLite's JSON ends at a NUL; ours does not.
CASE WHEN (m.size <= 16384 OR in_time()) AND instr(b.content, x'00') = 0
    AND json_valid(CAST(b.content AS TEXT))
  THEN {then} ELSE 0 END

-- part: member
-- A member with this text; numbers are compared as written.  GLOB compares the pattern at each
-- character, so large bodies use matches_glob instead.
json_type(CAST(b.content AS TEXT), :{p}) IN ('text', 'integer', 'real')
  AND CASE WHEN m.size <= 16384
    THEN CAST(json_extract(CAST(b.content AS TEXT), :{p}) AS TEXT) GLOB :{v}
    ELSE matches_glob(CAST(json_extract(CAST(b.content AS TEXT), :{p}) AS BLOB), :{v}) END

-- part: member_large
-- Matches an integer beyond 64 bits, which SQLite converts to a real.
json_extract(CAST(b.content AS TEXT), :{p}) = CAST(:{v} AS REAL)
  AND instr(b.content, CAST(:{v} AS BLOB)) > 0

-- part: member_word
-- Matches true, false or null, or the same word as a string.
json_type(CAST(b.content AS TEXT), :{p}) = :{v}
  OR json_type(CAST(b.content AS TEXT), :{p}) = 'text'
  AND json_extract(CAST(b.content AS TEXT), :{p}) = :{v}

-- part: member_compared
json_type(CAST(b.content AS TEXT), :{p}) IN ('integer', 'real')
  AND json_extract(CAST(b.content AS TEXT), :{p}) {sign} :{v}

-- part: least
-- The function that returns the smallest of some values.
min

-- part: greatest
max

-- part: indexed_upto
-- The last indexed offset; PostgreSQL indexes a row with its transaction.
{placed}

-- part: untraced
-- Live messages, from the first of those whose traces are not indexed.
1 + (SELECT max(seq) FROM message) - (
    SELECT seq FROM message WHERE seq > {traced} ORDER BY seq LIMIT 1
  )

-- part: state_seqs
SELECT (
    SELECT position FROM message INDEXED BY PLACES
    WHERE state = STATE AND queue_id = wanted.value
      AND position > :low AND position < :high AND position = seq
    ORDER BY position DESC LIMIT 1
  ) FROM json_each(:queues) AS wanted

-- name: next_seq
-- No message in certain queues within a range has a higher seq; NULL if there is none.
-- parameters: queues (a JSON array); low, high (seqs, exclusive)
-- columns: seq
-- index: history_run_seq
-- index: message_place
-- index: message_held
-- index: message_scheduled
-- index: message_blocked
-- index: message_moved
SELECT max(seq) FROM (
  SELECT (
    SELECT min(first_seq | 4095, :high - 1) FROM history_run INDEXED BY history_run_seq
    WHERE queue_id = wanted.value AND {near_numbers}
    ORDER BY seq_block DESC, first_seq DESC LIMIT 1
  ) AS seq
  FROM json_each(:queues) AS wanted
  UNION ALL
  SELECT max(seq) FROM history NOT INDEXED
  WHERE "offset" > {placed} AND seq > :low AND seq < :high
    AND queue_id IN (SELECT value FROM json_each(:queues))
  UNION ALL
  {each state_seqs UNION ALL}
  UNION ALL
  SELECT (
    SELECT seq FROM message INDEXED BY message_moved
    WHERE queue_id = wanted.value AND position <> seq AND seq > :low AND seq < :high
    ORDER BY seq DESC LIMIT 1
  )
  FROM json_each(:queues) AS wanted
);

-- name: next_offset
-- No settled message in certain queues within a range has a higher offset; NULL if there is none.
-- parameters: queues, outcomes (JSON arrays); low, high (offsets, exclusive)
-- columns: offset
-- index: history_run USING PRIMARY KEY
SELECT max("offset") FROM (
  SELECT (
    SELECT min(first_offset + length, :high) - 1 FROM history_run
    WHERE queue_id = wanted.value AND outcome = ending.value AND {near_offsets}
    ORDER BY block DESC, first_offset DESC LIMIT 1
  ) AS "offset"
  FROM json_each(:queues) AS wanted, json_each(:outcomes) AS ending
  UNION ALL
  SELECT * FROM (
    SELECT "offset" FROM history NOT INDEXED
    WHERE "offset" > max(:low, {placed}) AND "offset" < :high
      AND queue_id IN (SELECT value FROM json_each(:queues))
    ORDER BY "offset" DESC LIMIT 1
  )
);

-- name: few_traced
-- Live and settled messages whose traces begin with a text: at most :limit indexed and :limit
-- unindexed messages.  Some messages occur twice.
-- parameters: start, end (texts, exclusive end); low, high (seqs, exclusive); limit
-- columns: seq
-- index: trace_place USING PRIMARY KEY
SELECT seq FROM (
  SELECT seq FROM trace_place
  WHERE trace_id >= :start AND trace_id < :end AND {near} LIMIT :limit
)
UNION ALL
SELECT seq FROM (
  SELECT seq FROM message NOT INDEXED
  WHERE seq > max(:low, {traced}) AND seq < :high AND trace_id >= :start AND trace_id < :end
  LIMIT :limit
)
UNION ALL
SELECT seq FROM (
  SELECT seq FROM history NOT INDEXED
  WHERE "offset" > {placed} AND seq > :low AND seq < :high
    AND trace_id >= :start AND trace_id < :end
  LIMIT :limit
);

-- name: queues
-- Queues whose names match any of the globs.
-- parameters: globs (a JSON array)
-- columns: queue_id
SELECT queue_id FROM queue
WHERE EXISTS (SELECT 1 FROM json_each(:globs) AS wanted WHERE name GLOB wanted.value);
