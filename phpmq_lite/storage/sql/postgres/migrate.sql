-- name: create_migration_table
CREATE TABLE IF NOT EXISTS migration (
  number BIGINT PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL,
  applied_at BIGINT NOT NULL);

-- name: tables
SELECT relname AS name FROM pg_class
WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace;

-- name: wait_for_others
-- Several brokers may find the same empty database.
SELECT pg_advisory_xact_lock(7043900);
