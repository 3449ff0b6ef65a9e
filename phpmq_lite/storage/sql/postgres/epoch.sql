-- The row by which one broker of a shard is active.

-- name: read
-- columns: epoch, batch, seen_at, seconds since then, is_released, broker
SELECT epoch, batch, seen_at::text,
  extract(epoch FROM clock_timestamp() - seen_at)::double precision,
  is_released, broker
FROM epoch WHERE shard = ?;

-- name: lock
-- Waits for a server process that has not finished the last batch of a broken connection.
-- parameters: shard
-- columns: epoch, batch
SELECT epoch, batch FROM epoch WHERE shard = ? FOR UPDATE;

-- name: touch
-- parameters: shard
-- columns: place of the row
UPDATE epoch SET seen_at = clock_timestamp() WHERE shard = ? RETURNING ctid::text;

-- name: take
-- Raises the epoch, unless the row has changed since it was read.
-- parameters: broker (JSON); shard; epoch and batch as read
-- columns: the new epoch, place of the row
UPDATE epoch SET epoch = epoch + 1, batch = 0, seen_at = clock_timestamp(), is_released = false,
  broker = ?
WHERE shard = ? AND epoch = ? AND batch = ?
RETURNING epoch, ctid::text;

-- name: release
-- parameters: shard, epoch
UPDATE epoch SET is_released = true WHERE shard = ? AND epoch = ?;
