-- What may need somebody's attention.  Each looks at no more rows than its limit.
-- history_unusual is a partial index: its condition has to stand in the statement too.

-- name: deaths
-- Messages that died lately, by queue and reason.
-- parameters: since (Unix ms); limit (rows looked at, the newest)
-- columns: queue_id, reason, messages
-- index: history_unusual
SELECT queue_id, reason, count(*)
FROM (
  SELECT queue_id, reason, settled_at
  FROM history INDEXED BY history_unusual
  WHERE outcome = 4 AND outcome <> 2
  ORDER BY "offset" DESC
  LIMIT :limit
)
WHERE settled_at >= :since
GROUP BY queue_id, reason;

-- name: unread
-- Messages that expired lately and were never dispatched, by queue.
-- parameters: since (Unix ms); limit (rows looked at, the newest)
-- columns: queue_id, messages
-- index: history_unusual
SELECT queue_id, count(*)
FROM (
  SELECT queue_id, deliveries, settled_at
  FROM history INDEXED BY history_unusual
  WHERE outcome = 3 AND outcome <> 2
  ORDER BY "offset" DESC
  LIMIT :limit
)
WHERE settled_at >= :since AND deliveries = 0
GROUP BY queue_id;

-- name: held
-- What consumers hold, by queue and consumer.
-- parameters: limit (rows looked at, the oldest)
-- columns: queue_id, client, messages, bytes, since (Unix ms) the oldest is held
-- index: message_held
SELECT queue_id, consumer, count(*), sum(size), min(last_dispatched_at)
FROM (
  SELECT queue_id, consumer, size, last_dispatched_at
  FROM message INDEXED BY message_held
  WHERE state = 1
  ORDER BY seq
  LIMIT :limit
)
GROUP BY queue_id, consumer;
