-- Migrations that have been applied to this database.

-- name: add_migration
-- parameters: number, name, sha256, applied_at
INSERT INTO migration (number, name, sha256, applied_at) VALUES (?, ?, ?, ?);

-- name: applied
-- columns: number, sha256
SELECT number, sha256 FROM migration;

-- name: set_default_ttl
-- parameters: ttl_s, ttl_ms; of what migration 0002 scheduled, in queues without one of their own
UPDATE message SET ttl_s = ?, deadline_ms = due_ms + ?
WHERE state = 6 AND ttl_s IS NULL AND queue_id IN (
  SELECT queue_id FROM queue WHERE settings NOT LIKE '%"default_ttl_s"%'
);

-- name: end_default_ttl
DELETE FROM counter WHERE name = 'without_default_ttl';
