-- What a search is put together from, on a read-only connection.  search.py chooses a source,
-- adds conditions with AND, an order and a limit; values come as parameters only.
-- {traces} are names of parameters; in a condition {v} is the name of its own, and {state}, {why},
-- {ended} are what alive and settled messages have in different columns.

-- part: step
-- What the wall clock is ahead of the scale that deadlines are stored on (ms).
coalesce((SELECT value FROM counter WHERE name = 'clock_step_ms'), 0)

-- part: columns
-- What every source gives behind its place.
m.seq, m.queue_id, m.{state} AS state, m.urn, m.published_at, m.size,
  m.deadline_ms + {step} AS deadline_at

-- part: alive
-- Alive messages by number.
SELECT m.seq AS place, {columns}
FROM message AS m NOT INDEXED {join}
WHERE m.seq > :low AND m.seq < :high

-- part: alive_held
-- Dispatched ones by number.
-- index: message_held
SELECT m.seq AS place, {columns}
FROM message AS m INDEXED BY message_held {join}
WHERE m.state = 1 AND m.seq > :low AND m.seq < :high

-- part: alive_queues
-- Alive messages of some queues by position.
-- index: message_place
SELECT m.position AS place, {columns}
FROM message AS m INDEXED BY message_place {join}
WHERE m.queue_id IN (SELECT value FROM json_each(:queues))
  AND m.position > :low AND m.position < :high

-- part: settled_seq
-- Settled messages by number.
-- index: history_seq
SELECT m.seq AS place, {columns}
FROM history AS m INDEXED BY history_seq {join}
WHERE m.seq > :low AND m.seq < :high

-- part: settled
-- Settled messages by offset.
SELECT m."offset" AS place, {columns}
FROM history AS m NOT INDEXED {join}
WHERE m."offset" > :low AND m."offset" < :high

-- part: settled_unusual
-- Those that were not acknowledged.
-- index: history_unusual
SELECT m."offset" AS place, {columns}
FROM history AS m INDEXED BY history_unusual {join}
WHERE m.outcome <> 2 AND m.outcome IN (SELECT value FROM json_each(:outcomes))
  AND m."offset" > :low AND m."offset" < :high

-- part: placed
-- Up to this offset the settled messages stand in history_place too; behind it is a short tail.
coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0)

-- part: settled_queues
-- Those of some queues, as far as they have a place.
-- index: history_place USING PRIMARY KEY
SELECT m."offset" AS place, {columns}
FROM history_place CROSS JOIN history AS m ON m."offset" = history_place."offset" {join}
WHERE history_place.queue_id IN (SELECT value FROM json_each(:queues))
  AND history_place.outcome IN (SELECT value FROM json_each(:outcomes))
  AND history_place."offset" > :low AND history_place."offset" < :high

-- part: settled_tail
-- Those that have none yet.
SELECT m."offset" AS place, {columns}
FROM history AS m NOT INDEXED {join}
WHERE m."offset" > max(:low, {placed}) AND m."offset" < :high

-- part: alive_traces
-- Alive messages of some traces by number.
-- index: message_trace
SELECT m.seq AS place, {columns}
FROM message AS m INDEXED BY message_trace {join}
WHERE m.trace_id IN ({traces}) AND m.seq > :low AND m.seq < :high

-- part: settled_traces
-- Settled ones by number.
-- index: history_trace
SELECT m.seq AS place, {columns}
FROM history AS m INDEXED BY history_trace {join}
WHERE m.trace_id IN ({traces}) AND m.seq > :low AND m.seq < :high

-- part: body
LEFT JOIN body AS b ON b.seq = m.seq

-- part: newest
ORDER BY place DESC LIMIT :limit

-- part: oldest
ORDER BY place LIMIT :limit

-- part: in_queues
m.queue_id IN (SELECT value FROM json_each(:queues))

-- part: in_queue
m.queue_id = :queue

-- part: not_in_queues
m.queue_id NOT IN (SELECT value FROM json_each(:other_queues))

-- part: in_states
m.{state} IN (SELECT value FROM json_each(:{v}))

-- part: in_seqs
m.seq IN (SELECT value FROM json_each(:{v}))

-- part: urn
m.urn GLOB :{v}

-- part: trace
m.trace_id GLOB :{v}

-- part: trace_exact
m.trace_id = :{v}

-- part: reason
coalesce(m.{why} GLOB :{v}, 0) OR coalesce(m.source_reason GLOB :{v}, 0)

-- part: origin
m.source_queue_id IN (SELECT queue_id FROM queue WHERE name GLOB :{v})

-- part: id
printf('%016x%016x', m.seq, m.token) GLOB :{v}

-- part: client
coalesce(m.publisher IN (
  SELECT client FROM client WHERE address GLOB :{v} OR address GLOB :{v} || ':*'
    OR CAST(client AS TEXT) = :{v}
), 0) OR coalesce(m.consumer IN (
  SELECT client FROM client WHERE address GLOB :{v} OR address GLOB :{v} || ':*'
    OR CAST(client AS TEXT) = :{v}
), 0)

-- part: deliveries
m.deliveries {sign} :{v}

-- part: size
m.size {sign} :{v}

-- part: age
:now_ms - m.published_at {sign} :{v}

-- part: ttl
m.deadline_ms + {step} - {ended} {sign} :{v}

-- part: ttl_never
m.deadline_ms IS NULL

-- part: text
instr(b.content, :{v}) > 0

-- part: is_json
-- One malformed body must not fail the search; SQLite's JSON ends at a NUL, ours does not.
CASE WHEN instr(b.content, x'00') = 0 AND json_valid(CAST(b.content AS TEXT))
  THEN {then} ELSE 0 END

-- part: member
-- A member with this text; numbers are compared as they are written.
CAST(json_extract(CAST(b.content AS TEXT), :{p}) AS TEXT) GLOB :{v}
  AND json_type(CAST(b.content AS TEXT), :{p}) IN ('text', 'integer', 'real')

-- part: member_large
-- An integer beyond 64 bits, which SQLite takes for a real.
json_extract(CAST(b.content AS TEXT), :{p}) = CAST(:{v} AS REAL)
  AND instr(b.content, CAST(:{v} AS BLOB)) > 0

-- part: member_word
-- true, false, null; or a text that reads so.
json_type(CAST(b.content AS TEXT), :{p}) = :{v}
  OR json_type(CAST(b.content AS TEXT), :{p}) = 'text'
  AND json_extract(CAST(b.content AS TEXT), :{p}) = :{v}

-- part: member_compared
json_type(CAST(b.content AS TEXT), :{p}) IN ('integer', 'real')
  AND json_extract(CAST(b.content AS TEXT), :{p}) {sign} :{v}

-- name: line
-- How far the lines of numbers go; NULL where there is nothing.
-- parameters: queues (a JSON array)
-- columns: next number, first seq alive, first seq settled, first and last offset,
--   first position of these queues, messages alive in all queues, in these
SELECT
  (SELECT value FROM counter WHERE name = 'next_number'),
  (SELECT seq FROM message ORDER BY seq LIMIT 1),
  (SELECT seq FROM history INDEXED BY history_seq ORDER BY seq LIMIT 1),
  (SELECT "offset" FROM history ORDER BY "offset" LIMIT 1),
  (SELECT "offset" FROM history ORDER BY "offset" DESC LIMIT 1),
  (
    SELECT min((
      SELECT position FROM message WHERE queue_id = wanted.value ORDER BY position LIMIT 1
    ))
    FROM json_each(:queues) AS wanted
  ),
  (SELECT sum(live_count) FROM queue),
  (SELECT sum(live_count) FROM queue WHERE queue_id IN (SELECT value FROM json_each(:queues)));

-- name: few
-- The messages of some queues, alive and settled, up to a limit.
-- parameters: queues (a JSON array); limit
-- columns: seq
-- index: history_place USING PRIMARY KEY
SELECT seq FROM (
  SELECT seq FROM message INDEXED BY message_place
  WHERE queue_id IN (SELECT value FROM json_each(:queues)) LIMIT :limit
)
UNION ALL
SELECT seq FROM (
  SELECT history.seq FROM history_place
  CROSS JOIN history ON history."offset" = history_place."offset"
  WHERE history_place.queue_id IN (SELECT value FROM json_each(:queues)) LIMIT :limit
)
UNION ALL
SELECT seq FROM (
  SELECT seq FROM history NOT INDEXED
  WHERE "offset" > {placed} AND queue_id IN (SELECT value FROM json_each(:queues)) LIMIT :limit
)
LIMIT :limit;

-- name: next_seq
-- The newest number below a place that messages of some queues have, NULL: none.  Those settled
-- last are looked at first, for most likely it is theirs.  What settled before them has a greater
-- number only where it lived long: that is looked for among the numbers in between, along the
-- index alone, so that the rows of other queues are not read.
-- parameters: queues, outcomes (JSON arrays); low, place (seqs, exclusive); among (settled ones);
--   marks (a JSON array of [offset, seq]: what settled up to it has numbers up to that one)
-- columns: seq
-- index: history_place USING PRIMARY KEY
-- index: COVERING INDEX history_seq
WITH
  wanted AS MATERIALIZED (SELECT value AS queue_id FROM json_each(:queues)),
  lately AS MATERIALIZED (
    SELECT coalesce(max((
      SELECT "offset" FROM history_place
      WHERE queue_id = wanted.queue_id AND outcome = ending.value
      ORDER BY "offset" DESC LIMIT 1 OFFSET :among
    )), 0) AS "offset"
    FROM wanted, json_each(:outcomes) AS ending
  ),
  likely AS MATERIALIZED (
    SELECT max(seq) AS seq FROM (
      SELECT :low AS seq
      UNION ALL
      SELECT max(m.seq)
      FROM history_place CROSS JOIN history AS m ON m."offset" = history_place."offset"
      WHERE history_place.queue_id IN wanted
        AND history_place.outcome IN (SELECT value FROM json_each(:outcomes))
        AND history_place."offset" >= (SELECT "offset" FROM lately) AND m.seq < :place
      UNION ALL
      SELECT max(seq) FROM history NOT INDEXED
      WHERE "offset" > {placed} AND queue_id IN wanted AND seq < :place
      UNION ALL
      SELECT (
        SELECT seq FROM message INDEXED BY message_place
        WHERE queue_id = wanted.queue_id AND position < :place AND seq < :place
        ORDER BY position DESC LIMIT 1
      ) FROM wanted
    )
  ),
  settled AS MATERIALIZED (
    SELECT coalesce((
      SELECT numbered.seq
      FROM history AS numbered INDEXED BY history_seq
      CROSS JOIN history AS m ON m."offset" = numbered."offset"
      WHERE numbered.seq > (SELECT seq FROM likely)
        AND numbered.seq < min(:place, coalesce((
          SELECT 1 + min(json_extract(value, '$[1]')) FROM json_each(:marks)
          WHERE json_extract(value, '$[0]') >= (SELECT "offset" FROM lately) - 1
        ), :place))
        AND numbered."offset" < (SELECT "offset" FROM lately) AND m.queue_id IN wanted
      ORDER BY numbered.seq DESC LIMIT 1
    ), (SELECT seq FROM likely)) AS seq
  )
SELECT nullif(max(seq, coalesce(
  CASE
    WHEN (SELECT sum(live_count) FROM queue WHERE queue_id IN wanted) < :place - seq THEN (
      SELECT max(m.seq) FROM message AS m INDEXED BY message_place
      WHERE m.queue_id IN wanted AND m.seq < :place
    )
    ELSE (
      SELECT m.seq FROM message AS m NOT INDEXED
      WHERE m.seq > settled.seq AND m.seq < :place AND m.queue_id IN wanted
      ORDER BY m.seq DESC LIMIT 1
    )
  END, :low)), :low)
FROM settled;

-- name: first_after
-- Where the first of the messages settled that have greater numbers; NULL: none did.
-- parameters: after (seq, exclusive)
-- columns: offset
-- index: COVERING INDEX history_seq
SELECT min("offset") FROM history INDEXED BY history_seq WHERE seq > :after;

-- name: next_offset
-- The newest offset below a place that settled messages of some queues have, NULL: none.
-- parameters: queues, outcomes (JSON arrays); low, place (offsets, exclusive)
-- columns: offset
-- index: history_place USING PRIMARY KEY
SELECT max("offset") FROM (
  SELECT (
    SELECT "offset" FROM history_place
    WHERE queue_id = wanted.value AND outcome = ending.value
      AND "offset" > :low AND "offset" < :place
    ORDER BY "offset" DESC LIMIT 1
  ) AS "offset"
  FROM json_each(:queues) AS wanted, json_each(:outcomes) AS ending
  UNION ALL
  SELECT * FROM (
    SELECT "offset" FROM history NOT INDEXED
    WHERE "offset" > max(:low, {placed}) AND "offset" < :place
      AND queue_id IN (SELECT value FROM json_each(:queues))
    ORDER BY "offset" DESC LIMIT 1
  )
);

-- name: few_traced
-- The messages whose trace begins so, alive and settled, up to a limit of each.
-- parameters: start; end (exclusive): texts; limit
-- columns: seq
-- index: history_trace
SELECT seq FROM (
  SELECT seq FROM message INDEXED BY message_trace
  WHERE trace_id >= :start AND trace_id < :end LIMIT :limit
)
UNION ALL
SELECT seq FROM (
  SELECT seq FROM history INDEXED BY history_trace
  WHERE trace_id >= :start AND trace_id < :end LIMIT :limit
);

-- name: queues
-- The queues whose names match.
-- parameters: globs (a JSON array)
-- columns: queue_id
SELECT queue_id FROM queue
WHERE EXISTS (SELECT 1 FROM json_each(:globs) AS wanted WHERE name GLOB wanted.value);

-- name: names
-- What queues are called.
-- parameters: queues (a JSON array)
-- columns: queue_id, name
SELECT queue_id, name FROM queue
WHERE queue_id IN (SELECT value FROM json_each(:queues));

-- name: lately
-- What the newest messages have, for completion.
-- parameters: limit
-- columns: urn, content (NULL where large)
SELECT m.urn, CASE WHEN m.size <= 4096 THEN b.content END
FROM (
  SELECT seq, urn, size FROM (SELECT seq, urn, size FROM message ORDER BY seq DESC LIMIT :limit)
  UNION ALL
  SELECT seq, urn, size FROM (
    SELECT seq, urn, size FROM history ORDER BY "offset" DESC LIMIT :limit
  )
) AS m
LEFT JOIN body AS b ON b.seq = m.seq;
