-- name: held
-- index: message_held
WITH held AS MATERIALIZED (  -- otherwise, all messages might be read in order of seq
  SELECT seq, queue_id, consumer, size, last_dispatched_at FROM message WHERE state = 1
)
SELECT queue_id, CASE WHEN claim.seq IS NULL THEN consumer END AS consumer, count(*),
  sum(size)::bigint, min(last_dispatched_at)
FROM (SELECT * FROM held ORDER BY seq LIMIT :limit) AS oldest
LEFT JOIN claim USING (seq)
GROUP BY 1, 2;
