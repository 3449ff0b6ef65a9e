-- The row by which one broker of a shard is active.

-- name: read
-- columns: epoch, batch, seen_at, seconds since then, is_released, broker
SELECT epoch, batch, seen_at::text,
  extract(epoch FROM clock_timestamp() - seen_at)::double precision,
  is_released, broker
FROM read_epoch(?::int);

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

-- name: end_stalled
-- Ends sessions of a broker that stopped within a transaction, which may hold the row.  A session
-- that works or waits for replicas is left alone: its transaction may be confirmed.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
  AND application_name = 'phpmq-lite-writer' AND xact_start IS NOT NULL
  AND wait_event_type = 'Client';

-- name: idle_s
-- Seconds since the session of the active broker has worked; NULL if there is no session.
SELECT min(CASE WHEN state = 'active' AND wait_event_type IS DISTINCT FROM 'Client' THEN 0
  ELSE extract(epoch FROM clock_timestamp() - state_change) END)::double precision
FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
  AND application_name = 'phpmq-lite-writer';

-- name: call_writer
-- By this name other brokers find the session.
SET application_name = 'phpmq-lite-writer';

-- name: call_standby
SET application_name = 'phpmq-lite-standby';

-- name: has_session
-- Whether a session is on the server that this one is connected to.
-- parameters: pid of its server process
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid = ?;

-- name: relay_secret
-- With which brokers authenticate to each other.
-- columns: key, certificate, private_key
SELECT key, certificate, private_key FROM relay_secret;

-- name: add_relay_secret
-- Another broker may have been faster.
-- parameters: key, certificate, private_key
INSERT INTO relay_secret (secret_id, key, certificate, private_key) VALUES (1, ?, ?, ?)
ON CONFLICT (secret_id) DO NOTHING;
