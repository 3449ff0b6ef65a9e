-- name: held
-- Messages held by consumers, by queue and consumer; the consumer of claimed messages is NULL.
-- parameters: limit (oldest rows to read)
-- columns: queue_id, client, messages, bytes, dispatch time of the oldest (Unix ms)
-- index: message_held
SELECT queue_id, consumer, count(*), sum(size), min(last_dispatched_at)
FROM (
  SELECT queue_id, size, last_dispatched_at,
    CASE WHEN NOT EXISTS (SELECT 1 FROM claim WHERE claim.seq = message.seq) THEN consumer END
      AS consumer
  FROM message INDEXED BY message_held
  WHERE state = 1
  ORDER BY seq
  LIMIT :limit
)
GROUP BY queue_id, consumer;
