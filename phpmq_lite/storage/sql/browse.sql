-- What the admin reads, on read-only connections.  Nothing here writes.
-- Previews are cut here: 480 bytes hold 120 characters of any UTF-8.

-- part: step
-- What the wall clock is ahead of the scale that deadlines are stored on (ms).
coalesce((SELECT value FROM counter WHERE name = 'clock_step_ms'), 0)

-- part: seen
-- What alive and settled messages have alike; m is either, the others are of {names}.
m.deadline_ms + {step},
  m.published_at, m.first_dispatched_at, m.last_dispatched_at, m.deliveries, m.charged,
  m.size, m.crc, m.publisher, p.kind, p.address, m.consumer, c.kind, c.address,
  m.urn, m.trace_id, m.source_seq, o.token, oq.name, m.source_reason,
  substr(b.content, 1, 480)

-- part: alive
-- A live row as browse.MessageRow has it.
NULL AS "offset", m.seq, m.token, m.queue_id, q.name, m.position, m.state,
  NULL AS reason, NULL AS settled_at, m.ttl_s,
  {seen}

-- part: settled
-- A settled row in the same columns.
m."offset", m.seq, m.token, m.queue_id, q.name, m.position, m.outcome,
  m.reason, m.settled_at, m.ttl_s,
  {seen}

-- part: names
-- Who the numbers of a row stand for, and its body.
LEFT JOIN queue AS q ON q.queue_id = m.queue_id
LEFT JOIN client AS p ON p.client = m.publisher
LEFT JOIN client AS c ON c.client = m.consumer
LEFT JOIN history AS o ON o.seq = m.source_seq
LEFT JOIN queue AS oq ON oq.queue_id = m.source_queue_id
LEFT JOIN body AS b ON b.seq = m.seq

-- name: oldest_ready
-- When the first ready message of each queue asked for was published.
-- parameters: queue_ids (a JSON array)
-- columns: queue_id, published_at (NULL: nothing is ready)
-- index: message_place
SELECT
  wanted.value,
  (
    SELECT published_at FROM message
    WHERE queue_id = wanted.value AND state = 0
    ORDER BY position
    LIMIT 1
  )
FROM json_each(:queue_ids) AS wanted;

-- name: expiring
-- Ready messages whose deadline is near, by queue; no more than limit are looked at.
-- parameters: before_ms (Unix ms, exclusive); limit
-- columns: queue_id, messages, soonest deadline (Unix ms)
-- index: message_deadline
SELECT
  queue_id, count(*),
  min(deadline_ms) + {step}
FROM (
  SELECT queue_id, deadline_ms
  FROM message
  WHERE state = 0 AND deadline_ms
    < :before_ms - {step}
  ORDER BY deadline_ms
  LIMIT :limit
)
GROUP BY queue_id;

-- name: messages_after
-- A page of a queue, in order, behind a position.
-- parameters: queue_id; position (exclusive); state (NULL: both); limit
-- columns: those of browse.MessageRow
-- index: message_place
SELECT {alive}
FROM message AS m
{names}
WHERE m.queue_id = :queue_id AND m.position > :position
  AND (:state IS NULL OR m.state = :state)
ORDER BY m.position
LIMIT :limit;

-- name: held_after
-- The same for dispatched messages only: they are few, the queue may be long.
-- parameters: queue_id; position (exclusive); limit
-- columns: those of browse.MessageRow
-- index: message_held
SELECT {alive}
FROM message AS m INDEXED BY message_held
{names}
WHERE m.state = 1 AND m.queue_id = :queue_id AND m.position > :position
ORDER BY m.position
LIMIT :limit;

-- name: messages_before
-- A page of a queue, backwards, ahead of a position.
-- parameters: queue_id; position (exclusive); state (NULL: both); limit
-- columns: those of browse.MessageRow
-- index: message_place
SELECT {alive}
FROM message AS m
{names}
WHERE m.queue_id = :queue_id AND m.position < :position
  AND (:state IS NULL OR m.state = :state)
ORDER BY m.position DESC
LIMIT :limit;

-- name: held_before
-- The same for dispatched messages only: they are few, the queue may be long.
-- parameters: queue_id; position (exclusive); limit
-- columns: those of browse.MessageRow
-- index: message_held
SELECT {alive}
FROM message AS m INDEXED BY message_held
{names}
WHERE m.state = 1 AND m.queue_id = :queue_id AND m.position < :position
ORDER BY m.position DESC
LIMIT :limit;

-- name: by_seq
-- One message, alive or settled; one statement, so it is not missed while it settles.
-- parameters: seq
-- columns: those of browse.MessageRow
-- index: history_seq
SELECT {alive}
FROM message AS m
{names}
WHERE m.seq = :seq
UNION ALL
SELECT {settled}
FROM history AS m
{names}
WHERE m.seq = :seq
LIMIT 1;

-- name: history_older
-- Settled messages between two offsets, newest first.
-- parameters: start (exclusive), stop (inclusive): offsets; queue_id, outcome (NULL: all); limit
-- columns: those of browse.MessageRow
SELECT {settled}
FROM history AS m
{names}
WHERE m."offset" < :start AND m."offset" >= :stop
  AND (:queue_id IS NULL OR m.queue_id = :queue_id)
  AND (:outcome IS NULL OR m.outcome = :outcome)
ORDER BY m."offset" DESC
LIMIT :limit;

-- name: history_newer
-- Settled messages between two offsets, oldest first.
-- parameters: start (exclusive), stop (inclusive): offsets; queue_id, outcome (NULL: all); limit
-- columns: those of browse.MessageRow
SELECT {settled}
FROM history AS m
{names}
WHERE m."offset" > :start AND m."offset" <= :stop
  AND (:queue_id IS NULL OR m.queue_id = :queue_id)
  AND (:outcome IS NULL OR m.outcome = :outcome)
ORDER BY m."offset"
LIMIT :limit;

-- name: history_ends
-- The first and last offset of the history; NULL where it is empty.
-- columns: lowest, highest
SELECT
  (SELECT "offset" FROM history ORDER BY "offset" LIMIT 1),
  (SELECT "offset" FROM history ORDER BY "offset" DESC LIMIT 1);

-- name: dead_groups
-- Dead-letter records by the queue they are in, where they died and why, newest group first.
-- parameters: limit
-- columns: those of browse.DeadGroup
-- index: message_place
SELECT
  queue_id, name, origin, source_reason, records, bytes, first_at, last_at, last_seq,
  (SELECT token FROM message WHERE seq = last_seq)
FROM (
  SELECT
    q.queue_id, q.name, oq.name AS origin, m.source_reason, count(*) AS records,
    sum(m.size) AS bytes, min(m.published_at) AS first_at, max(m.published_at) AS last_at,
    max(m.seq) AS last_seq
  FROM queue AS q
  CROSS JOIN message AS m INDEXED BY message_place ON m.queue_id = q.queue_id
  LEFT JOIN queue AS oq ON oq.queue_id = m.source_queue_id
  WHERE q.name GLOB '*.dlq' AND q.live_count > 0
  GROUP BY q.queue_id, m.source_queue_id, m.source_reason
)
ORDER BY last_seq DESC
LIMIT :limit;

-- name: body_head
-- A body whole up to a size, of a larger one the beginning.
-- parameters: seq; whole, head (bytes)
-- columns: length, content
SELECT
  length(content),
  substr(content, 1, CASE WHEN length(content) <= :whole THEN :whole ELSE :head END)
FROM body
WHERE seq = :seq;

-- name: body
-- A whole body.
-- parameters: seq
-- columns: content
SELECT content FROM body WHERE seq = :seq;

-- name: events
-- The unusual turns of one life, in order.
-- parameters: seq; limit
-- columns: at_ms, kind, detail
-- index: event_seq
SELECT at_ms, kind, detail FROM event WHERE seq = :seq ORDER BY event_id LIMIT :limit;

-- name: next_number
-- The number that the next message would get.
-- columns: value
SELECT value FROM counter WHERE name = 'next_number';
