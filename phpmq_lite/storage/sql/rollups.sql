-- How the queues went, in spans of one minute and of a quarter of an hour.
-- Two numbers stand for more than one queue besides 0, the rest: -1 all, -2 the dead-letter queues.

-- part: columns
-- The order of storage/rollups.Point, without the histograms.
at_s, span_s, published, dispatched, redelivered, acked, requeued, expired, dead, deleted,
  ready, held, bytes, oldest_age_ms

-- part: ahead
-- How far the clock is ahead of where it was once, in seconds: what is old by it may not be old.
coalesce((SELECT value FROM counter WHERE name = 'clock_step_ms')
  - (SELECT min(step_ms) FROM clock_step), 0) / 1000

-- name: put
-- A span of a queue; a span that a stop cut short is replaced by the whole one.
-- parameters: at_s, span_s, published, dispatched, redelivered, acked, requeued, expired, dead,
--   deleted, ready, held, size, oldest_age_ms, wait, hold, queue_id
INSERT OR REPLACE INTO rollup ({columns}, wait, hold, queue_id)
VALUES (:at_s, :span_s, :published, :dispatched, :redelivered, :acked, :requeued, :expired, :dead, :deleted, :ready, :held, :size, :oldest_age_ms, :wait, :hold, :queue_id);

-- name: trim
-- The oldest spans of one length, no more than limit.
-- parameters: span_s, before_s, limit
-- index: rollup_time
DELETE FROM rollup
WHERE (span_s, queue_id, at_s) IN (
  SELECT span_s, queue_id, at_s FROM rollup INDEXED BY rollup_time
  WHERE span_s = :span_s AND at_s < :before_s - {ahead}
  ORDER BY at_s
  LIMIT :limit
);

-- name: of_queue
-- One queue over a time, in order.
-- parameters: span_s; queue_id; since, until (Unix seconds; until is exclusive)
-- columns: those of rollups.Point
-- index: PRIMARY KEY
SELECT {columns}, wait, hold
FROM rollup
WHERE span_s = :span_s AND queue_id = :queue_id AND at_s >= :since AND at_s < :until
ORDER BY at_s;

-- name: beats
-- When the broker ran, and whether there was a rest: queues without rows of their own.
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
-- All queues from a time on, in order of time.
-- parameters: span_s; since (Unix seconds)
-- columns: queue_id, then those of rollups.Point
-- index: rollup_time
SELECT queue_id, {columns}, wait, hold
FROM rollup
WHERE span_s = :span_s AND at_s >= :since
ORDER BY at_s;

-- name: last
-- The newest span of one length; NULL where there is none.
-- parameters: span_s
-- columns: at_s
-- index: rollup_time
SELECT max(at_s) FROM rollup WHERE span_s = :span_s;
