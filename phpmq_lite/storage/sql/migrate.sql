-- Migrations that have been applied to this database.

-- name: add_migration
-- parameters: number, name, sha256, applied_at
INSERT INTO migration (number, name, sha256, applied_at) VALUES (?, ?, ?, ?);

-- name: applied
-- columns: number, sha256
SELECT number, sha256 FROM migration;
