-- Ranges of history rows and claims, for export.  They are also read by ADBC.
-- The selected columns are composed of parts; a column without a part is read by its own name.

-- part: column_offset
m."offset"

-- part: column_message_id
lpad(to_hex(m.seq), 16, '0') || lpad(to_hex(m.token), 16, '0')

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

-- part: column_body
(SELECT content FROM body WHERE body.seq = m.seq)

-- part: column_claim
c.claim

-- part: only_queues
AND m.queue_id = ANY (ids(:queue_ids))

-- part: only_outcomes
AND m.outcome = ANY (ids(:outcomes))

-- part: history_range
-- Settled messages within a range of offsets.
FROM history AS m
WHERE m."offset" > :lo AND m."offset" <= :hi

-- part: claim_range
-- Messages held by a subscription, within a range of claims.
FROM claim AS c JOIN message AS m ON m.seq = c.seq
WHERE c.subscription_id = :subscription_id AND c.claim > :lo AND c.claim <= :hi

-- part: part_ends
-- Last number of each part, which has :part_bytes of bodies, or one larger body.
SELECT max(number) AS number FROM (
  SELECT {number} AS number, div(sum(m.size) OVER (ORDER BY {number}), :part_bytes::bigint) AS part
  {range}
) AS summed GROUP BY part ORDER BY 1

-- part: is_settled_before
-- Within a segment, the wall clock may be 4 s off the clock's step, in both directions.
coalesce((SELECT settled_at FROM history WHERE "offset" >= (low + high) / 2 AND "offset" < ends
  ORDER BY "offset" LIMIT 1) < :at_ms::bigint - 8000, true)

-- name: bounds
-- Range of offsets in the history, at a single moment.
-- columns: history_id; lo (above it, only deleted messages may be missing); hi (last offset
--   assigned); lo_deleted (above it, no message is missing)
SELECT
  (SELECT value FROM meta WHERE name = 'history_id') AS history_id,
  greatest(coalesce((SELECT value FROM counter WHERE name = 'history_lo'), 0) - 1, 0) AS lo,
  coalesce((SELECT max("offset") FROM history), 0) AS hi,
  greatest(coalesce((SELECT value FROM counter WHERE name = 'deleted_lo'), 0) - 1, 0) AS lo_deleted;

-- name: offset_at
-- Offset before the first message settled at or after a given time.  Times only grow between two
-- clock steps, so each segment is searched by bisection.
-- parameters: lo, hi (as in bounds); at_ms (Unix ms)
-- columns: offset; lo if no message was settled earlier, hi if none was settled later
WITH RECURSIVE segment (low, high) AS (
  SELECT low, coalesce(
    (SELECT min(from_offset) FROM clock_step WHERE from_offset > low AND from_offset <= :hi),
    :hi::bigint + 1)
  FROM (
    SELECT :lo::bigint + 1 AS low
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
SELECT coalesce(min((
  SELECT "offset" FROM history
  WHERE "offset" >= low AND "offset" < ends AND settled_at >= :at_ms ORDER BY "offset" LIMIT 1
)), :hi + 1) - 1 AS "offset"
FROM halving WHERE low = high;

-- name: queues
-- All queues that the history may refer to.
-- columns: queue_id, name
SELECT queue_id, name FROM queue ORDER BY name;

-- name: subscription
-- parameters: name
-- columns: subscription_id; queue; acked_upto, next_claim (numbers of claims)
SELECT s.subscription_id, q.name AS queue, s.acked_upto, s.next_claim
FROM subscription AS s JOIN queue AS q ON q.queue_id = s.queue_id
WHERE s.name = :name;
