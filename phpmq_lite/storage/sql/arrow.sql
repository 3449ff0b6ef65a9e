-- Ranges of history rows and claims, for export.  They are read by Python's SQLite and by ADBC, so
-- they use no custom functions, and parameters occur in the order in which they are bound.
-- The selected columns are composed of parts; a column without a part is read by its own name.

-- part: column_offset
m."offset"

-- part: column_message_id
message_id(m.seq, m.token)

-- part: column_queue
(SELECT name FROM queue WHERE queue.queue_id = m.queue_id)

-- part: column_outcome
CASE m.outcome WHEN 2 THEN 'acked' WHEN 3 THEN 'expired' WHEN 4 THEN 'dead' ELSE 'deleted' END

-- part: column_deadline
-- On the wall clock as it was when the message was settled, so that repeated reads agree.
m.deadline_ms + CASE WHEN m.deadline_ms IS NOT NULL THEN coalesce(
  (SELECT step_ms FROM clock_step WHERE from_offset <= m."offset" ORDER BY number DESC LIMIT 1),
  (SELECT step_ms FROM clock_step ORDER BY number LIMIT 1),
  (SELECT value FROM counter WHERE name = 'clock_step_ms'), 0) END

-- part: column_ready_at
CASE WHEN m.due_ms IS NULL THEN coalesce(m.ready_at, m.published_at) END

-- part: column_priority
-- As in model.priority_of.
(m.position >> 48) + 128

-- part: column_retries
coalesce(m.retries, 0)

-- part: column_group
m.group_name

-- part: column_source_queue
(SELECT name FROM queue WHERE queue.queue_id = m.source_queue_id)

-- part: column_history_id
(SELECT value FROM meta WHERE name = 'history_id')

-- part: column_history_offset
m."offset"

-- part: column_event_id
e.event_id

-- part: column_event_at
e.at_ms

-- part: column_kind
e.kind

-- part: column_detail
e.detail

-- part: column_count
e.count

-- part: column_last_at
e.last_at

-- part: column_claim
c.claim

-- part: only_queues
AND m.queue_id IN ids(:queue_ids)

-- part: only_outcomes
AND m.outcome IN ids(:outcomes)

-- part: only_settled
AND m.settled_at >= :settled_from AND m.settled_at < :settled_until

-- part: only_published
AND m.published_at >= :published_from AND m.published_at < :published_until

-- part: events
-- index: event_seq
CROSS JOIN event AS e ON e.seq = m.seq AND e.event_id <= :last_event

-- part: history_range
-- Settled messages within a range of offsets.
FROM history AS m {join}
WHERE m."offset" > :lo AND m."offset" <= :hi

-- part: unusual_range
-- The same, of messages that were not acknowledged.
-- index: history_unusual
FROM history AS m INDEXED BY history_unusual {join}
WHERE m.outcome <> 2 AND m."offset" > :lo AND m."offset" <= :hi

-- part: offset_range
-- The same, of certain offsets.
FROM ids(:offsets) AS wanted CROSS JOIN history AS m ON m."offset" = wanted.value {join}
WHERE m."offset" > :lo AND m."offset" <= :hi

-- part: claim_range
-- Messages held by a subscription, within a range of claims.
FROM claim AS c JOIN message AS m ON m.seq = c.seq
WHERE c.subscription_id = :subscription_id AND c.claim > :lo AND c.claim <= :hi

-- part: part_ends
-- Last number of each part, which has :part_size of {size}, or one larger.
SELECT max(number) AS number FROM (
  SELECT {number} AS number,
    CAST(sum({size}) OVER (ORDER BY {number}) AS bigint) / CAST(:part_size AS bigint) AS part
  {range}
) AS summed GROUP BY part ORDER BY 1

-- name: bounds
-- Range of offsets in the history, at a single moment.
-- columns: history_id; lo (above it, only deleted messages may be missing); hi (last offset
--   assigned); lo_deleted (above it, no message is missing)
SELECT
  (SELECT value FROM meta WHERE name = 'history_id') AS history_id,
  coalesce((SELECT value FROM counter WHERE name = 'history_lo' AND value > 0), 1) - 1 AS lo,
  coalesce((SELECT max("offset") FROM history), 0) AS hi,
  coalesce((SELECT value FROM counter WHERE name = 'deleted_lo' AND value > 0), 1) - 1 AS lo_deleted;

-- part: is_settled_before
-- Within a segment, the wall clock may be 4 s off the clock's step, in both directions.
coalesce((SELECT settled_at FROM history WHERE "offset" >= (low + high) / 2 AND "offset" < ends
  ORDER BY "offset" LIMIT 1) < CAST(:at_ms AS bigint) - 8000, 1 = 1)

-- part: boundaries
-- In each segment, an offset before which all messages were settled before :at_ms, in (low, ends).
-- Times only grow between two clock steps, so each segment is searched by bisection.
WITH RECURSIVE segment (low, high) AS (
  SELECT low, coalesce(
    (SELECT min(from_offset) FROM clock_step WHERE from_offset > low AND from_offset <= :hi),
    CAST(:hi AS bigint) + 1)
  FROM (
    SELECT CAST(:lo AS bigint) + 1 AS low
    UNION SELECT from_offset FROM clock_step WHERE from_offset > :lo AND from_offset <= :hi
  ) AS starts
), halving (low, high, ends) AS (
  SELECT low, high, high FROM segment
  UNION ALL
  SELECT
    CASE WHEN {is_settled_before} THEN (low + high) / 2 + 1 ELSE low END,
    CASE WHEN {is_settled_before} THEN high ELSE (low + high) / 2 END,
    ends
  FROM halving WHERE low < high)

-- name: boundaries
-- parameters: lo, hi (as in bounds); at_ms (Unix ms)
-- columns: low (no message of the segment before it was settled at or after :at_ms, and none from it
--   on more than 16 s before); ends (of the segment, exclusive)
{boundaries}
SELECT low, ends FROM halving WHERE low = high ORDER BY ends;

-- name: offset_at
-- Offset before the first message settled at or after a given time.
-- parameters: lo, hi (as in bounds); at_ms (Unix ms)
-- columns: offset; lo if no message was settled earlier, hi if none was settled later
{boundaries}
SELECT coalesce(min((
  SELECT "offset" FROM history
  WHERE "offset" >= low AND "offset" < ends AND settled_at >= :at_ms ORDER BY "offset" LIMIT 1
)), CAST(:hi AS bigint) + 1) - 1 AS "offset"
FROM halving WHERE low = high;

-- name: last_event
-- columns: event_id (0: there are no events)
SELECT coalesce(max(event_id), 0) AS event_id FROM event;

-- name: queues
-- All queues that the history may refer to.
-- columns: queue_id, name
SELECT queue_id, name FROM queue ORDER BY name;

-- name: subscription
-- columns: subscription_id; queue; acked_upto, next_claim (numbers of claims)
SELECT s.subscription_id, q.name AS queue, s.acked_upto, s.next_claim
FROM subscription AS s JOIN queue AS q ON q.queue_id = s.queue_id
WHERE s.name = :name;
