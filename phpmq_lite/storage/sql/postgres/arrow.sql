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
m.deadline_ms + coalesce((SELECT value FROM counter WHERE name = 'clock_step_ms'), 0)

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
coalesce((SELECT settled_at FROM history WHERE "offset" >= (low + high) / 2
  ORDER BY "offset" LIMIT 1) < :at_ms::bigint, false)

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
-- Last offset settled before a given time, by bisection, because times only grow.
-- parameters: lo, hi (as in bounds); at_ms (Unix ms)
-- columns: offset, or lo if all offsets are later
WITH RECURSIVE halving (low, high) AS (
  SELECT :lo::bigint + 1, :hi::bigint + 1
  UNION ALL
  SELECT
    CASE WHEN {is_settled_before} THEN (low + high) / 2 + 1 ELSE low END,
    CASE WHEN {is_settled_before} THEN high ELSE (low + high) / 2 END
  FROM halving WHERE low < high)
SELECT max(low) - 1 AS "offset" FROM halving;

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
