-- Parts from which search/plan.py composes a search: sources, conditions joined with AND, an order
-- and a limit; values are parameters.  {traces} are names of parameters.  In a condition, {v} is
-- its own parameter, and {state}, {why}, {ended} and {step} are columns that differ between live and
-- settled messages.

-- part: live_step
-- How far the wall clock is ahead of the scale used for deadlines (ms).
coalesce((SELECT value FROM counter WHERE name = 'clock_step_ms'), 0)

-- part: settled_step
-- The same when the message was settled, as in arrow.sql.
coalesce(
  (SELECT step_ms FROM clock_step WHERE from_offset <= m."offset" ORDER BY number DESC LIMIT 1),
  (SELECT step_ms FROM clock_step ORDER BY number LIMIT 1), {live_step})

-- part: reasons
('poison', 'too_deep', 'missing_meta', 'unsupported_schema_version', 'invalid_data',
  'missing_trace_id', 'invalid_attempts', 'schema_mismatch')

-- part: columns
-- Columns that follow the position in every source.
m.seq, m.queue_id, m.{state} AS state, m.urn, m.published_at, m.size,
  m.deadline_ms + {step} AS deadline_at

-- part: alive
-- Live messages by number.
SELECT m.seq AS place, {columns}
FROM message AS m NOT INDEXED {join}
WHERE m.seq > :low AND m.seq < :high

-- part: alive_held
-- Dispatched messages by number, which are usually few.
-- index: message_held
SELECT m.seq AS place, {columns}
FROM message AS m INDEXED BY message_held {join}
WHERE m.state = 1 AND m.seq > :low AND m.seq < :high

-- part: state_queues
-- Live messages of a state in certain queues, by position.
SELECT m.position AS place, {columns}
FROM message AS m INDEXED BY PLACES {join}
WHERE m.state = STATE AND m.queue_id IN ids(:queues)
  AND m.position > :low AND m.position < :high

-- part: state_numbers
-- Live messages of a state in certain queues that are at their original position, by number.
SELECT m.position AS place, {columns}
FROM message AS m INDEXED BY PLACES {join}
WHERE m.state = STATE AND m.queue_id {these} AND m.position > :low AND m.position < :high
  AND m.position = m.seq

-- part: alive_moved
-- Live messages with a priority, and those that were requeued, moved, forwarded or restored to
-- another position.
-- index: message_moved
SELECT m.seq AS place, {columns}
FROM message AS m INDEXED BY message_moved {join}
WHERE m.queue_id {these} AND m.position <> m.seq AND m.seq > :low AND m.seq < :high

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
-- Settled messages that were not acknowledged.
-- index: history_unusual
SELECT m."offset" AS place, {columns}
FROM history AS m INDEXED BY history_unusual {join}
WHERE m.outcome <> 2 AND m.outcome IN ids(:outcomes)
  AND m."offset" > :low AND m."offset" < :high

-- part: body
LEFT JOIN body AS b ON b.seq = m.seq

-- part: newest
-- twin: oldest
ORDER BY place {DESC | ASC} LIMIT :limit

-- part: these_queues
IN ids(:queues)

-- part: this_queue
= :queue

-- part: not_in_queues
NOT m.queue_id IN ids(:other_queues)

-- part: in_states
m.{state} IN ids(:{v})

-- part: in_seqs
m.seq IN ids(:{v})

-- part: urn
m.urn {glob} (:{v})

-- part: trace
m.trace_id {glob} (:{v})

-- part: trace_exact
m.trace_id = :{v}

-- part: origin
m.source_queue_id IN (SELECT queue_id FROM queue WHERE name {glob} (:{v}))

-- part: id
message_id(m.seq, m.token) {glob} (:{v})

-- part: meta
m.meta_id {glob} (:{v})

-- part: verdict
-- Only matches reasons of invalid envelopes, because the same columns also hold other reasons.
m.{why} {glob} (:{v}) AND m.{why} IN {reasons}
  OR m.source_reason {glob} (:{v}) AND m.source_reason IN {reasons}

-- part: clients
-- Clients with an address, with any port, or with a number.
SELECT client FROM client WHERE address {glob} (:{v}) OR address {glob} (:{v} || ':*')
    OR CAST(client AS text) = :{v}

-- part: client
coalesce(m.publisher IN ({clients}), false) OR coalesce(m.consumer IN ({clients}), false)

-- part: attempts
m.attempts {sign} :{v}

-- part: deliveries
m.deliveries {sign} :{v}

-- part: size
m.size {sign} :{v}

-- part: age
:now_ms - coalesce(m.ready_at, m.published_at) {sign} :{v}

-- part: ttl
m.deadline_ms + {step} - {ended} {sign} :{v}

-- part: ttl_never
m.deadline_ms IS NULL

-- part: state_first
-- twin: state_last
coalesce((
      SELECT position FROM message WHERE queue_id = wanted.value AND state = STATE
        AND position > :after AND position < :before ORDER BY position {ASC | DESC} LIMIT 1
    ), {4611686018427387904 | -4611686018427387904})

-- part: first_positions
-- twin: last_positions
-- The first or last position of a queue; a queue without messages has one beyond all others.
{{least} | {greatest}}({each state_{first | last},})

-- name: next_position
-- twin: previous_position
-- The next position in certain queues within a range, or beyond all others if there is none.
-- parameters: queues (a JSON array); after, before (positions, exclusive)
-- columns: position
-- index: message_place
-- index: message_held
-- index: message_scheduled
-- index: message_blocked
SELECT {min | max}({{first_positions} | {last_positions}}) FROM ids(:queues) AS wanted;

-- name: search_ends
-- Ranges of numbers to search; NULL if there is nothing to search.
-- parameters: queues (a JSON array); after, before (positions, exclusive)
-- columns: next number, first live seq, first settled seq, first and last offset, first and last
--   position in these queues, live messages in all queues and in these, last indexed offset, live
--   messages whose traces are not indexed
SELECT
  (SELECT next_number FROM line),
  (SELECT seq FROM message ORDER BY seq LIMIT 1),
  (SELECT seq FROM history INDEXED BY history_seq ORDER BY seq LIMIT 1),
  (SELECT "offset" FROM history ORDER BY "offset" LIMIT 1),
  (SELECT "offset" FROM history ORDER BY "offset" DESC LIMIT 1),
  (SELECT min({first_positions}) FROM ids(:queues) AS wanted),
  (SELECT max({last_positions}) FROM ids(:queues) AS wanted),
  (SELECT CAST(sum(live_count) AS bigint) FROM queue),
  (SELECT CAST(sum(live_count) AS bigint) FROM queue WHERE queue_id IN ids(:queues)),
  {indexed_upto},
  {untraced};

-- name: names
-- Names of the given queues.
-- parameters: queues (a JSON array)
-- columns: queue_id, name
SELECT queue_id, name FROM queue
WHERE queue_id IN ids(:queues);

-- name: newest_contents
-- URNs and contents of the newest messages, used to complete search terms.
-- columns: urn, content (NULL if large)
SELECT m.urn, CASE WHEN m.size <= 4096 THEN b.content END
FROM (
  SELECT seq, urn, size FROM (SELECT seq, urn, size FROM message ORDER BY seq DESC LIMIT :limit) AS live
  UNION ALL
  SELECT seq, urn, size FROM (
    SELECT seq, urn, size FROM history ORDER BY "offset" DESC LIMIT :limit
  ) AS settled
) AS m
LEFT JOIN body AS b ON b.seq = m.seq;
