-- name: has_users
-- columns: whether the table of users exists
SELECT to_regclass('"user"') IS NOT NULL;
