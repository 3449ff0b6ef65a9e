-- Parts from which search_plan.py composes a search: sources, conditions joined with AND, an order
-- and a limit; values are parameters.  {traces} are names of parameters.  In a condition, {v} is
-- its own parameter, {p} that of a path, and {state}, {why}, {ended} and {step} differ
-- between live and settled messages.

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
FROM message AS m {join}
WHERE m.seq > :low AND m.seq < :high

-- part: alive_held
-- Dispatched messages by number, which are usually few.
-- index: message_held
SELECT m.seq AS place, {columns}
FROM message AS m {join}
WHERE m.state = 1 AND m.seq > :low AND m.seq < :high

-- part: ready_queues
-- Ready messages in certain queues, by position.
-- index: message_place
SELECT m.position AS place, {columns}
FROM message AS m {join}
WHERE m.state = 0 AND m.queue_id = ANY (ids(:queues))
  AND m.position > :low AND m.position < :high

-- part: held_queues
-- Dispatched messages in certain queues, by position.
-- index: message_held
SELECT m.position AS place, {columns}
FROM message AS m {join}
WHERE m.state = 1 AND m.queue_id = ANY (ids(:queues))
  AND m.position > :low AND m.position < :high

-- part: ready_numbers
-- Ready messages in certain queues that are at their original position, by number.
-- index: message_place
SELECT m.position AS place, {columns}
FROM message AS m {join}
WHERE m.state = 0 AND m.queue_id {these} AND m.position > :low AND m.position < :high
  AND m.position = m.seq

-- part: held_numbers
-- Dispatched messages in certain queues that are at their original position, by number.
-- index: message_held
SELECT m.position AS place, {columns}
FROM message AS m {join}
WHERE m.state = 1 AND m.queue_id {these} AND m.position > :low AND m.position < :high
  AND m.position = m.seq

-- part: alive_moved
-- Live messages that were requeued, moved, forwarded or restored to another position.
-- index: message_moved
SELECT m.seq AS place, {columns}
FROM message AS m {join}
WHERE m.queue_id {these} AND m.position <> m.seq AND m.seq > :low AND m.seq < :high

-- part: settled_seq
-- Settled messages by number.
-- index: history_seq
SELECT m.seq AS place, {columns}
FROM history AS m {join}
WHERE m.seq > :low AND m.seq < :high

-- part: settled
-- Settled messages by offset.
SELECT m."offset" AS place, {columns}
FROM history AS m {join}
WHERE m."offset" > :low AND m."offset" < :high

-- part: settled_unusual
-- Settled messages that were not acknowledged.
-- index: history_unusual
SELECT m."offset" AS place, {columns}
FROM history AS m {join}
WHERE m.outcome <> 2 AND m.outcome = ANY (ids(:outcomes))
  AND m."offset" > :low AND m."offset" < :high

-- part: settled_queues
-- Settled messages in certain queues, by offset.
-- index: history_place
SELECT m."offset" AS place, {columns}
FROM history AS m {join}
WHERE m.queue_id = ANY (ids(:queues)) AND m.outcome = ANY (ids(:outcomes))
  AND m."offset" > :low AND m."offset" < :high

-- part: settled_numbers
-- Settled messages in certain queues, by number.
-- index: history_number
SELECT m.seq AS place, {columns}
FROM history AS m {join}
WHERE m.queue_id {these} AND m.seq > :low AND m.seq < :high

-- part: alive_traces
-- Live messages with certain traces, by number.
-- index: message_trace
SELECT m.seq AS place, {columns}
FROM message AS m {join}
WHERE m.trace_id IN ({traces}) AND m.seq > :low AND m.seq < :high

-- part: settled_traces
-- Settled messages with certain traces, by number.
-- index: history_trace
SELECT m.seq AS place, {columns}
FROM history AS m {join}
WHERE m.trace_id IN ({traces}) AND m.seq > :low AND m.seq < :high

-- part: body
LEFT JOIN body AS b ON b.seq = m.seq

-- part: newest
ORDER BY place DESC LIMIT :limit

-- part: oldest
ORDER BY place LIMIT :limit

-- part: these_queues
= ANY (ids(:queues))

-- part: this_queue
= :queue

-- part: not_in_queues
m.queue_id <> ALL (ids(:other_queues))

-- part: in_outcomes
m.outcome = ANY (ids(:outcomes))

-- part: in_states
m.{state} = ANY (ids(:{v}))

-- part: in_seqs
m.seq = ANY (ids(:{v}))

-- part: urn
m.urn LIKE like_pattern(:{v})

-- part: trace
m.trace_id LIKE like_pattern(:{v})

-- part: trace_exact
m.trace_id = :{v}

-- part: reason
-- For invalid envelopes, also search the detail, which is part of the dead letter.  For an original
-- message, the detail is read from its dead letter while the dead letter is live.
-- index: message_source
coalesce(m.{why} LIKE like_pattern(:{v}), false)
  OR coalesce(m.source_reason LIKE like_pattern(:{v}), false)
  OR coalesce(m.source_reason, m.{why}) IN {reasons} AND EXISTS (
    SELECT 1
    FROM (
      SELECT m.seq WHERE m.source_reason IS NOT NULL
      UNION ALL
      SELECT record.seq FROM message AS record
      WHERE record.source_seq = m.seq AND record.source_reason = m.{why}
    ) AS about
    JOIN body AS said ON said.seq = about.seq
    WHERE left(json_scalar(json_member(said.content, '{.dead_letter,.error}')), 512)
      LIKE like_pattern(:{v})
  )

-- part: origin
m.source_queue_id = ANY (ARRAY(SELECT queue_id FROM queue WHERE name LIKE like_pattern(:{v})))

-- part: id
lpad(to_hex(m.seq), 16, '0') || lpad(to_hex(m.token), 16, '0') LIKE like_pattern(:{v})

-- part: client
coalesce(m.publisher IN (
  SELECT client FROM client WHERE address LIKE like_pattern(:{v})
    OR address LIKE like_pattern(:{v}) || ':%' OR client::text = :{v}
), false) OR coalesce(m.consumer IN (
  SELECT client FROM client WHERE address LIKE like_pattern(:{v})
    OR address LIKE like_pattern(:{v}) || ':%' OR client::text = :{v}
), false)

-- part: meta
m.meta_id LIKE like_pattern(:{v})

-- part: verdict
-- Only matches reasons of invalid envelopes, because the same columns also hold other reasons.
m.{why} LIKE like_pattern(:{v}) AND m.{why} IN {reasons}
  OR m.source_reason LIKE like_pattern(:{v}) AND m.source_reason IN {reasons}

-- part: attempts
m.attempts {sign} :{v}

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
position(:{v} IN b.content) > 0

-- part: is_json
-- A body that is not JSON has no members.
({then})

-- part: member
-- A member with this text; numbers are compared as SQLite writes them.  LIKE cannot be interrupted,
-- so large bodies use a regular expression instead.
CASE WHEN m.size <= 16384
  THEN json_scalar(json_member(b.content, json_steps(:{p}))) LIKE like_pattern(:{v})
  ELSE json_scalar(json_member(b.content, json_steps(:{p}))) ~ regex_pattern(:{v}) END

-- part: member_large
-- Matches an integer beyond 64 bits, which SQLite converts to a real.
json_member(b.content, json_steps(:{p}))::text = :{v}

-- part: member_word
-- Matches true, false or null, or the same word as a string.
json_scalar(json_member(b.content, json_steps(:{p}))) = :{v}
  OR json_member(b.content, json_steps(:{p}))::text = :{v}

-- part: member_compared
json_number(json_member(b.content, json_steps(:{p}))) {sign} :{v}

-- name: line
-- Ranges of numbers to search; NULL if there is nothing to search.
-- parameters: queues (a JSON array)
-- columns: next number, first live seq, first settled seq, first and last offset, first position in
--   these queues, live messages in all queues and in these, last indexed offset, live messages
--   whose traces are not indexed
SELECT
  (SELECT next_number FROM line),
  (SELECT seq FROM message ORDER BY seq LIMIT 1),
  (SELECT seq FROM history ORDER BY seq LIMIT 1),
  (SELECT "offset" FROM history ORDER BY "offset" LIMIT 1),
  (SELECT "offset" FROM history ORDER BY "offset" DESC LIMIT 1),
  (
    SELECT min(least(
      coalesce((
        SELECT position FROM message WHERE queue_id = wanted.queue_id AND state = 0
        ORDER BY position LIMIT 1
      ), 4611686018427387904),
      coalesce((
        SELECT position FROM message WHERE queue_id = wanted.queue_id AND state = 1
        ORDER BY position LIMIT 1
      ), 4611686018427387904)
    ))
    FROM unnest(ids(:queues)) AS wanted (queue_id)
  ),
  (SELECT sum(live_count)::bigint FROM queue),
  (SELECT sum(live_count)::bigint FROM queue WHERE queue_id = ANY (ids(:queues))),
  coalesce((SELECT "offset" FROM history ORDER BY "offset" DESC LIMIT 1), 0),
  0;

-- name: next_seq
-- No message in certain queues within a range has a higher seq; NULL if there is none.
-- parameters: queues (a JSON array); low, high (seqs, exclusive)
-- columns: seq
-- index: history_number
-- index: message_place
-- index: message_held
-- index: message_moved
SELECT max(seq) FROM unnest(ids(:queues)) AS wanted (queue_id), LATERAL (
  (
    SELECT seq FROM history
    WHERE queue_id = wanted.queue_id AND seq > :low AND seq < :high
    ORDER BY seq DESC LIMIT 1
  )
  UNION ALL
  (
    SELECT position FROM message
    WHERE state = 0 AND queue_id = wanted.queue_id
      AND position > :low AND position < :high AND position = seq
    ORDER BY position DESC LIMIT 1
  )
  UNION ALL
  (
    SELECT position FROM message
    WHERE state = 1 AND queue_id = wanted.queue_id
      AND position > :low AND position < :high AND position = seq
    ORDER BY position DESC LIMIT 1
  )
  UNION ALL
  SELECT max(seq) FROM message
  WHERE queue_id = wanted.queue_id AND position <> seq AND seq > :low AND seq < :high
) AS newest;

-- name: next_offset
-- No settled message in certain queues within a range has a higher offset; NULL if there is none.
-- parameters: queues, outcomes (JSON arrays); low, high (offsets, exclusive)
-- columns: offset
-- index: history_place
SELECT max("offset")
FROM unnest(ids(:queues)) AS wanted (queue_id), unnest(ids(:outcomes)) AS ending (outcome),
  LATERAL (
  SELECT "offset" FROM history
  WHERE queue_id = wanted.queue_id AND outcome = ending.outcome
    AND "offset" > :low AND "offset" < :high
  ORDER BY "offset" DESC LIMIT 1
) AS newest;

-- name: few_traced
-- Live and settled messages whose traces begin with a text: at most :limit of each.
-- parameters: start, end (texts, exclusive end); low, high (seqs, exclusive); limit
-- columns: seq
-- index: message_trace
-- index: history_trace
(
  SELECT seq FROM message
  WHERE trace_id >= :start AND trace_id < :end AND seq > :low AND seq < :high
  LIMIT :limit
)
UNION ALL
(
  SELECT seq FROM history
  WHERE trace_id >= :start AND trace_id < :end AND seq > :low AND seq < :high
  LIMIT :limit
);

-- name: queues
-- Queues whose names match any of the globs.
-- parameters: globs (a JSON array)
-- columns: queue_id
SELECT queue_id FROM queue
WHERE name LIKE ANY (ARRAY(
  SELECT like_pattern(glob) FROM jsonb_array_elements_text(:globs::jsonb) AS wanted (glob)
));

-- name: names
-- Names of the given queues.
-- parameters: queues (a JSON array)
-- columns: queue_id, name
SELECT queue_id, name FROM queue
WHERE queue_id = ANY (ids(:queues));

-- name: lately
-- URNs and contents of the newest messages, used to complete search terms.
-- parameters: limit
-- columns: urn, content (NULL if large)
SELECT m.urn, CASE WHEN m.size <= 4096 THEN b.content END
FROM (
  SELECT seq, urn, size FROM (
    SELECT seq, urn, size FROM message ORDER BY seq DESC LIMIT :limit
  ) AS live
  UNION ALL
  SELECT seq, urn, size FROM (
    SELECT seq, urn, size FROM history ORDER BY "offset" DESC LIMIT :limit
  ) AS settled
) AS m
LEFT JOIN body AS b ON b.seq = m.seq;
