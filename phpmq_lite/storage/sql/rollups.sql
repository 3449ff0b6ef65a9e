-- Queue activity in spans of one minute or 15 minutes.  Three queue_ids stand for several queues:
-- -1 for all queues, -2 for all dead-letter queues, 0 for all queues without rows of their own.

-- part: columns
-- Columns in the order of read/activity.Point, without those that are packed.
at_s, span_s, published, dispatched, redelivered, acked, requeued, expired, dead, deleted,
  ready, held, bytes, oldest_age_ms

-- name: of_queue
-- Points of one queue in a time range, in order.
-- parameters: span_s; queue_id; since, until (Unix seconds; until is exclusive)
-- columns: those of activity.Point
-- index: PRIMARY KEY
SELECT {columns}, wait, hold, losses
FROM rollup
WHERE span_s = :span_s AND queue_id = :queue_id AND at_s >= :since AND at_s < :until
ORDER BY at_s;

-- name: uptime
-- Spans in which the broker was running, and whether any queues lacked rows of their own.
-- parameters: span_s; since, until (Unix seconds; until is exclusive)
-- columns: at_s, span_s, has_rest
-- index: PRIMARY KEY
SELECT
  at_s, span_s,
  EXISTS (SELECT 1 FROM rollup AS r WHERE r.span_s = a.span_s AND r.queue_id = 0 AND r.at_s = a.at_s)
FROM rollup AS a
WHERE span_s = :span_s AND queue_id = -1 AND at_s >= :since AND at_s < :until
ORDER BY at_s;

-- name: since
-- Points of all queues since a given time, in time order.
-- parameters: span_s; since (Unix seconds)
-- columns: queue_id, then those of activity.Point
-- index: rollup_time
SELECT queue_id, {columns}, wait, hold, losses
FROM rollup
WHERE span_s = :span_s AND at_s >= :since
ORDER BY at_s;

-- name: newest
-- Start of the newest span of one length; NULL if there is none.
-- columns: at_s
-- index: rollup_time
SELECT max(at_s) FROM rollup WHERE span_s = :span_s;

-- name: totals
-- What happened in each queue in a time range, and the name of the queue.
-- parameters: span_s; since, until (Unix seconds; until is exclusive)
-- columns: queue_id; name, NULL if it is not known; sums of the columns in activity.COUNTS
-- index of SQLite: PRIMARY KEY
WITH RECURSIVE known (id) AS (  -- searched one by one: older rows of all queues are in between
  SELECT min(queue_id) FROM rollup WHERE span_s = :span_s
  UNION ALL
  SELECT (SELECT min(queue_id) FROM rollup WHERE span_s = :span_s AND queue_id > known.id)
  FROM known WHERE known.id IS NOT NULL
)
SELECT totals.id, name, published, dispatched, redelivered, acked, requeued, expired, dead, deleted
FROM (
  SELECT known.id,
    CAST(sum(published) AS BIGINT) AS published, CAST(sum(dispatched) AS BIGINT) AS dispatched,
    CAST(sum(redelivered) AS BIGINT) AS redelivered, CAST(sum(acked) AS BIGINT) AS acked,
    CAST(sum(requeued) AS BIGINT) AS requeued, CAST(sum(expired) AS BIGINT) AS expired,
    CAST(sum(dead) AS BIGINT) AS dead, CAST(sum(deleted) AS BIGINT) AS deleted
  FROM known CROSS JOIN rollup ON queue_id = known.id
  WHERE span_s = :span_s AND at_s >= :since AND at_s < :until
  GROUP BY known.id
) AS totals LEFT JOIN queue ON queue.queue_id = totals.id;
