-- A statement for several rows takes an array for each column; its other parameters come first.

-- part: offset
"offset",

-- part: next_offset
-- The newest row of the history always stays.
(SELECT coalesce(max("offset"), 0) FROM history) + row_number() OVER (ORDER BY message.seq),

-- name: insert_run
-- New messages with consecutive numbers that differ only in queue and content, at their original
-- positions, dispatched at most once.
INSERT INTO message (seq, position, state, deliveries, ttl_s, deadline_ms, published_at,
  first_dispatched_at, last_dispatched_at, charged, publisher, consumer, queue_id, token, size,
  crc)
SELECT $1::bigint + n - 1, $1::bigint + n - 1, $2::bigint, $2::bigint, $3::bigint, $4::bigint,
  $5::bigint, $6::bigint, $6::bigint, 0, $7::bigint, $8::bigint, queue_id, token, size, crc
FROM unnest($9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[])
  WITH ORDINALITY AS given (queue_id, token, size, crc, n);

-- name: insert_bodies
INSERT INTO body (seq, content)
SELECT $1::bigint + n - 1, content FROM unnest($2::bytea[]) WITH ORDINALITY AS given (content, n);

-- name: update_queue
SELECT FROM update_queues($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]);

-- name: set_counter
SELECT FROM change_counter(?::text, ?::bigint, false);

-- name: add_counter
SELECT FROM change_counter(?::text, ?::bigint, true);

-- name: delete_forgotten_queues
DELETE FROM queue WHERE settings = ?
  AND NOT EXISTS (SELECT 1 FROM history WHERE history.queue_id = queue.queue_id)
  AND queue_id NOT IN (SELECT abs(queue_id) FROM receipt)
  AND queue_id NOT IN (SELECT queue_id FROM stage_part)
  AND queue_id NOT IN (SELECT queue_id FROM subscription);
