-- Migrations that have been applied to this database.

-- name: create_migration_table
-- sha256 is the hex hash of the migration file's text; applied_at is in Unix ms.
CREATE TABLE IF NOT EXISTS migration (
  number BIGINT PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL,
  applied_at BIGINT NOT NULL);

-- name: add_migration
-- parameters: number, name, sha256, applied_at
INSERT INTO migration (number, name, sha256, applied_at) VALUES (?, ?, ?, ?);

-- name: applied
-- columns: number, sha256
SELECT number, sha256 FROM migration;

-- name: tables
-- columns: name
SELECT relname AS name FROM pg_class
WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace;

-- name: wait_for_others
-- Several brokers may find the same empty database.
SELECT pg_advisory_xact_lock(7043900);
