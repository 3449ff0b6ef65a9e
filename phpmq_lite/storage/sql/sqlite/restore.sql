-- Changes to a restored copy before it replaces the database.

-- name: has_meta
-- Whether the schema includes a history id.
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'meta');
