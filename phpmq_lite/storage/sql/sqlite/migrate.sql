-- name: create_migration_table
-- sha256 is the hex hash of the migration file's text; applied_at is in Unix ms.
CREATE TABLE IF NOT EXISTS migration (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL,
  applied_at INTEGER NOT NULL);

-- name: tables
-- columns: name
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- name: statements
-- columns: name and sql of every object that migrations create
SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\_%' ESCAPE '\';
