-- name: tables
SELECT t.relname AS name, c.attname AS name,
  CASE format_type(c.atttypid, NULL)
    WHEN 'bigint' THEN 'INTEGER' WHEN 'bytea' THEN 'BLOB' ELSE upper(format_type(c.atttypid, NULL))
  END AS type,
  array_position(k.indkey::int2[], c.attnum) AS place
FROM pg_class AS t JOIN pg_attribute AS c ON c.attrelid = t.oid
LEFT JOIN pg_index AS k ON k.indrelid = t.oid AND k.indisprimary
WHERE t.relkind = 'r' AND t.relnamespace = current_schema()::regnamespace
  AND c.attnum > 0 AND NOT c.attisdropped
ORDER BY t.relname, place, c.attname;

-- name: identities
-- Columns whose values the server assigns.
-- columns: table, column
SELECT t.relname, c.attname
FROM pg_class AS t JOIN pg_attribute AS c ON c.attrelid = t.oid
WHERE t.relkind = 'r' AND t.relnamespace = current_schema()::regnamespace AND c.attidentity <> '';

-- name: states
-- columns: role (source or target), content (JSON)
SELECT role, content FROM copy_state ORDER BY role;

-- name: set_state
-- parameters: role, content
INSERT INTO copy_state (role, content) VALUES (?, ?)
ON CONFLICT (role) DO UPDATE SET content = excluded.content;

-- name: drop_state
-- parameters: role
DELETE FROM copy_state WHERE role = ?;
