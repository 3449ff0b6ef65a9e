-- name: has_users
-- columns: 1 if the table of users exists, 0 in a database without a schema
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'user');
