-- name: has_users
-- columns: whether the table of users exists, which an older database lacks
SELECT to_regclass('"user"') IS NOT NULL;
