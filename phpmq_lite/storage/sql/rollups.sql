-- Queue activity in spans of one minute or 15 minutes.  Three queue_ids stand for several queues:
-- -1 for all queues, -2 for all dead-letter queues, 0 for all queues without rows of their own.

-- part: columns
-- Columns in the order of read/rollups.Point, without the histograms.
at_s, span_s, published, dispatched, redelivered, acked, requeued, expired, dead, deleted,
  ready, held, bytes, oldest_age_ms

-- name: of_queue
-- Points of one queue in a time range, in order.
-- parameters: span_s; queue_id; since, until (Unix seconds; until is exclusive)
-- columns: those of rollups.Point
-- index: PRIMARY KEY
SELECT {columns}, wait, hold
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
-- columns: queue_id, then those of rollups.Point
-- index: rollup_time
SELECT queue_id, {columns}, wait, hold
FROM rollup
WHERE span_s = :span_s AND at_s >= :since
ORDER BY at_s;

-- name: newest
-- Start of the newest span of one length; NULL if there is none.
-- columns: at_s
-- index: rollup_time
SELECT max(at_s) FROM rollup WHERE span_s = :span_s;
