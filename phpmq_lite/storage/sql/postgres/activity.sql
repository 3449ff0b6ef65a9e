-- name: held
-- index: message_held
WITH held AS MATERIALIZED (  -- otherwise, all messages might be read in order of seq
  SELECT seq, queue_id, consumer, size, last_dispatched_at FROM message WHERE state = 1
)
SELECT queue_id, consumer, count(*), sum(size)::bigint, min(last_dispatched_at)
FROM (SELECT * FROM held ORDER BY seq LIMIT :limit) AS oldest
GROUP BY queue_id, consumer;
