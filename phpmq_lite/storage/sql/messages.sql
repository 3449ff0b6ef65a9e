-- Messages, bodies, events and history for pages, on read-only connections.
-- Previews are truncated here: 480 bytes hold 120 characters of any UTF-8 text.

-- name: count_expiring
-- Number of ready messages that expire if the broker's downtime counts.
-- parameters: moment (steady ms, inclusive); number (first assigned afterwards); most (limit)
-- columns: count
-- index: message_deadline
SELECT count(*) FROM (
  SELECT 1 FROM message INDEXED BY message_deadline
  WHERE state IN (0, 7) AND deadline_ms IS NOT NULL AND deadline_ms <= :moment
    AND seq < :number AND position < :number
  LIMIT :most) AS expiring;

-- part: clock_step
-- How far the wall clock is ahead of the scale used for deadlines (ms).
coalesce((SELECT value FROM counter WHERE name = 'clock_step_ms'), 0)

-- part: settled_deadline
-- On the wall clock as it was when the message was settled, as in arrow.sql.
m.deadline_ms + CASE WHEN m.deadline_ms IS NOT NULL THEN coalesce(
  (SELECT step_ms FROM clock_step WHERE from_offset <= m."offset" ORDER BY number DESC LIMIT 1),
  (SELECT step_ms FROM clock_step ORDER BY number LIMIT 1), {clock_step}) END

-- part: shared_columns
-- Columns common to live and settled messages; m is either table, and {joins} adds other tables.
m.published_at, m.first_dispatched_at, m.last_dispatched_at, m.deliveries, m.charged,
  m.size, m.crc, m.publisher, p.kind, p.address, m.consumer, c.kind, c.address,
  m.urn, m.trace_id, m.meta_id, m.attempts, m.source_seq, o.token, oq.name, m.source_reason,
  {preview}, m.ready_at, m.deliver_at, m.retries, m.group_name, m.unique_key

-- part: live_columns
-- Columns of a live message, in the order of messages.MessageRow.
NULL AS "offset", m.seq, m.token, m.queue_id, q.name, m.position, m.state,
  NULL AS reason, NULL AS settled_at, m.ttl_s, m.deadline_ms + {clock_step},
  {shared_columns}, m.due_ms + {clock_step}, m.head_since, NULL AS erased_at

-- part: settled_columns
-- Columns of a settled message, in the order of messages.MessageRow.
m."offset", m.seq, m.token, m.queue_id, q.name, m.position, m.outcome,
  m.reason, m.settled_at, m.ttl_s, {settled_deadline},
  {shared_columns}, NULL AS due_at, NULL AS head_since, m.erased_at

-- part: joins
-- Adds the body, and names and addresses for the ids in a row.
LEFT JOIN queue AS q ON q.queue_id = m.queue_id
LEFT JOIN client AS p ON p.client = m.publisher
LEFT JOIN client AS c ON c.client = m.consumer
LEFT JOIN history AS o ON o.seq = m.source_seq
LEFT JOIN queue AS oq ON oq.queue_id = m.source_queue_id
LEFT JOIN body AS b ON b.seq = m.seq

-- part: dead_letter
-- A dead letter and the reason why its message died.
SELECT
  m.position, m.seq, m.source_queue_id, m.urn, m.source_reason, m.published_at, m.size,
  EXISTS (
    SELECT 1 FROM event AS e
    WHERE e.seq = m.source_seq AND e.kind = 'redrive' AND e.detail < seq_digits(m.source_seq)
  ),
  CASE WHEN m.size <= 65536 THEN (
    SELECT substr(content, nullif({place_of_block}, 0), 400) FROM body WHERE body.seq = m.seq
  ) END

-- name: filled_queues
-- Queues that are not empty, by name.
-- columns: queue_id, name, number of messages
SELECT queue_id, name, live_count FROM queue WHERE live_count > 0 ORDER BY name;

-- part: ready_levels
-- twin: blocked_levels
-- The first position of each priority in the given queues.
(queue_id, position) AS (
  SELECT value, (
    SELECT m.position FROM message AS m WHERE m.queue_id = value AND m.state = {0 | 7}
    ORDER BY m.position LIMIT 1
  ) FROM ids(:queue_ids) AS wanted
  UNION ALL
  SELECT queue_id, (
    SELECT m.position FROM message AS m WHERE m.queue_id = {ready | blocked}.queue_id
      AND m.state = {0 | 7} AND m.position >= (({ready | blocked}.position >> 48) + 1) << 48
    ORDER BY m.position LIMIT 1
  ) FROM {ready | blocked} WHERE position IS NOT NULL
)

-- name: oldest_ready
-- Time since which the oldest ready message of each given queue is ready, blocked ones included.
-- Messages of one priority become ready in order of their positions.
-- parameters: queue_ids (a JSON array)
-- columns: queue_id, Unix ms
-- index: message_place
-- index: message_blocked
WITH RECURSIVE ready {ready_levels}, blocked {blocked_levels}
SELECT queue_id, min(since) FROM (
  SELECT ready.queue_id, coalesce(m.ready_at, m.published_at) AS since
  FROM ready CROSS JOIN message AS m ON m.queue_id = ready.queue_id
    AND m.position = ready.position AND m.state = 0
  UNION ALL
  SELECT blocked.queue_id, coalesce(m.ready_at, m.published_at)
  FROM blocked CROSS JOIN message AS m ON m.queue_id = blocked.queue_id
    AND m.position = blocked.position AND m.state = 7
) AS oldest
GROUP BY queue_id;

-- name: by_unique_key
-- The live message of a queue with a unique key.
-- parameters: queue_id; unique_key
-- columns: seq
-- index: message_unique
SELECT seq FROM message
WHERE queue_id = :queue_id AND unique_key = CAST(:unique_key AS text) AND unique_key IS NOT NULL
  AND source_queue_id IS NULL;

-- name: blocking_heads
-- Messages in flight, or waiting to be again, that block others of their groups, longest first.
-- parameters: queue_id; among, limit (rows)
-- columns: seq
-- index: message_head
-- index: message_group
SELECT head.seq
FROM (
  SELECT seq, group_name, head_since FROM message
  WHERE queue_id = :queue_id AND head_since IS NOT NULL
  LIMIT :among
) AS head
WHERE EXISTS (
  SELECT 1 FROM message AS m
  WHERE m.queue_id = :queue_id AND m.group_name = head.group_name AND m.seq <> head.seq
    AND m.group_name IS NOT NULL AND m.source_queue_id IS NULL AND m.state IN (0, 7)
)
ORDER BY head.head_since, head.seq
LIMIT :limit;

-- name: expiring
-- Ready messages that will expire soon, by queue; at most :limit rows are read.
-- parameters: before_ms (Unix ms, exclusive); limit
-- columns: queue_id, messages, soonest deadline (Unix ms)
-- index: message_deadline
SELECT
  queue_id, count(*),
  min(deadline_ms) + {clock_step}
FROM (
  SELECT queue_id, deadline_ms
  FROM message
  WHERE state IN (0, 7) AND deadline_ms IS NOT NULL
    AND deadline_ms < :before_ms - {clock_step}
  ORDER BY deadline_ms
  LIMIT :limit
) AS soonest
GROUP BY queue_id;

-- name: by_seq
-- twin: by_seqs
-- A live or settled message, or several.  One statement reads both tables so that no settlement is
-- missed.
-- parameters: seq; or seqs (a JSON array)
-- columns: those of messages.MessageRow
-- index: history_seq
SELECT {live_columns}
FROM message AS m
{joins}
WHERE m.seq {= :seq | IN ids(:seqs)}
UNION ALL
SELECT {settled_columns}
FROM history AS m
{joins}
WHERE m.seq {= :seq LIMIT 1 | IN ids(:seqs)};

-- name: history_older
-- twin: history_newer
-- Settled messages before or after an offset, the nearest first.
-- parameters: start (exclusive), stop (inclusive): offsets; limit
-- columns: those of messages.MessageRow
SELECT {settled_columns}
FROM history AS m
{joins}
WHERE m."offset" {< | >} :start AND m."offset" {>= | <=} :stop
ORDER BY m."offset" {DESC | ASC}
LIMIT :limit;

-- name: outcome_older
-- twin: outcome_newer
-- Messages with one outcome other than acked, before or after an offset, the nearest first.
-- parameters: start (exclusive), stop (inclusive): offsets; outcome; limit
-- columns: those of messages.MessageRow
-- index: history_unusual
SELECT {settled_columns}
FROM history AS m INDEXED BY history_unusual
{joins}
WHERE m.outcome <> 2 AND m.outcome = :outcome
  AND m."offset" {< | >} :start AND m."offset" {>= | <=} :stop
ORDER BY m."offset" {DESC | ASC}
LIMIT :limit;

-- name: acked_older
-- twin: acked_newer
-- Acked messages before or after an offset, the nearest first.  They make up most of the history,
-- so its rows are scanned.
-- parameters: start (exclusive), stop (inclusive): offsets; outcome; limit
-- columns: those of messages.MessageRow
SELECT {settled_columns}
FROM history AS m NOT INDEXED
{joins}
WHERE m.outcome = :outcome AND m."offset" {< | >} :start AND m."offset" {>= | <=} :stop
ORDER BY m."offset" {DESC | ASC}
LIMIT :limit;

-- name: newest_deleted
-- Deleted messages that have not been restored, newest first; :looked rows are read.
-- parameters: start (offset, exclusive); queues (a JSON array, NULL for all); looked
-- columns: offset, seq, whether the message is in the trash
-- index: history_unusual
SELECT m."offset", m.seq,
  (CAST(:queues AS text) IS NULL OR m.queue_id IN ids(:queues))
  AND NOT EXISTS (SELECT 1 FROM event AS e WHERE e.seq = m.seq AND e.kind = 'restore'
    AND seq_digits(m.seq) < substr(e.detail, 1, 16))
  AND EXISTS (SELECT 1 FROM body AS b WHERE b.seq = m.seq)
FROM history AS m INDEXED BY history_unusual
WHERE m.outcome <> 2 AND m.outcome = 5 AND m."offset" < :start
ORDER BY m."offset" DESC
LIMIT :looked;

-- name: settled_at
-- Time when the message at an offset, or the next message, was settled.
-- parameters: at (offset)
-- columns: offset, settled_at
SELECT "offset", settled_at FROM history WHERE "offset" >= :at ORDER BY "offset" LIMIT 1;

-- name: history_ends
-- First and last offsets of the history; NULL if the history is empty.
-- columns: lowest, highest
SELECT
  (SELECT "offset" FROM history ORDER BY "offset" LIMIT 1),
  (SELECT "offset" FROM history ORDER BY "offset" DESC LIMIT 1);

-- name: tokens
-- Tokens of live messages, which are the random halves of their ids.
-- parameters: seqs (a JSON array)
-- columns: seq, token
SELECT seq, token FROM message WHERE seq IN ids(:seqs);

-- name: links
-- Events that link messages to other messages: restore, redrive, edit, dead letter.
-- parameters: seqs (a JSON array); limit
-- columns: seq, at_ms, kind, detail (the id of the other message)
-- index: event_seq
SELECT seq, at_ms, kind, detail FROM event
WHERE seq IN ids(:seqs)
  AND kind IN ('redrive', 'restore', 'edit', 'dead_letter') AND length(detail) = 32
ORDER BY event_id + 0  -- otherwise, PostgreSQL might read all events in order
LIMIT :limit;

-- name: copies
-- Messages that have the data of others: the messages of records, and what was made from a message.
-- parameters: seqs (a JSON array)
-- columns: seq, or NULL and an id
-- index: event_seq
-- index: message_source
-- index: history_seq
SELECT CAST(NULL AS bigint) AS seq, detail FROM event WHERE seq IN ids(:seqs)
  AND kind IN ('redrive', 'restore', 'edit', 'dead_letter') AND length(detail) = 32
UNION ALL SELECT seq, NULL FROM message WHERE source_seq IN ids(:seqs) AND source_seq IS NOT NULL
UNION ALL SELECT source_seq, NULL FROM message WHERE seq IN ids(:seqs) AND source_seq IS NOT NULL
UNION ALL SELECT source_seq, NULL FROM history WHERE seq IN ids(:seqs) AND source_seq IS NOT NULL;

-- name: stored_of
-- parameters: seqs (a JSON array)
-- columns: seq; id; 0 if it is live, 1 if it is settled, 2 if its data was erased
-- index: history_seq
SELECT seq, message_id(seq, token), 0 FROM message WHERE seq IN ids(:seqs)
UNION ALL
SELECT seq, message_id(seq, token), CASE WHEN erased_at IS NULL THEN 1 ELSE 2 END
FROM history WHERE seq IN ids(:seqs);

-- name: seqs_at_offsets
-- parameters: first, last (offsets, inclusive)
-- columns: seq
-- index: PRIMARY KEY
SELECT seq FROM history WHERE "offset" BETWEEN :first AND :last ORDER BY "offset";

-- name: retries
-- Attempts of messages that their workers reported as failed or put off, oldest first.
-- parameters: seqs (a JSON array); limit
-- columns: seq, at_ms, kind, detail
-- index: event_seq
SELECT seq, at_ms, kind, detail FROM event
WHERE seq IN ids(:seqs) AND kind = 'retry'
ORDER BY event_id + 0  -- otherwise, PostgreSQL might read all events in order
LIMIT :limit;

-- name: body
-- twin: bodies
-- The complete body of a message, or those of several.
-- parameters: seq; or seqs (a JSON array)
-- columns: seq (of several), content
SELECT {content | seq, content} FROM body
WHERE seq {= :seq | IN ids(:seqs)};

-- name: events
-- The events of a message, in order.
-- columns: at_ms, kind, detail, count, last_at
-- index: event_seq
SELECT at_ms, kind, detail, count, last_at FROM event
WHERE seq = :seq ORDER BY event_id LIMIT :limit;

-- name: next_number
-- Number that the next message will get.
-- columns: number
SELECT next_number FROM line;
