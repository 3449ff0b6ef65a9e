-- Users, API tokens and login sessions, which are read at startup, and saved items.

-- name: users
-- columns: user_id, name, password, role, queues, created_at, last_login_at
SELECT user_id, name, password, role, queues, created_at, last_login_at FROM "user";

-- name: tokens
-- columns: token_id, name, sha256, role, queues, created_at, created_by, expires_at, last_used_at
SELECT token_id, name, sha256, role, queues, created_at, created_by, expires_at, last_used_at
FROM token;

-- name: sessions
-- columns: session_id, sha256, user_id, csrf, created_at, seen_at, expires_at, address, agent
SELECT session_id, sha256, user_id, csrf, created_at, seen_at, expires_at, address, agent
FROM session;

-- name: known_addresses
-- Addresses of recent logins.  Only the newest audit rows are read, because there is no index.
-- parameters: since (at_ms)
SELECT DISTINCT address
FROM (SELECT at_ms, address, action, result FROM audit ORDER BY audit_id DESC LIMIT 20000) AS newest
WHERE action = 'session.login' AND result = 'done' AND at_ms >= :since;

-- name: has_admin
-- columns: whether there is a user with the role admin
SELECT EXISTS (SELECT 1 FROM "user" WHERE role = 'admin');

-- name: saved_items
-- twin: saved_item
-- Saved items of one kind, by name, or a single one.
-- parameters: kind; limit, or name
-- columns: name, content (JSON), saved_at, saved_by
SELECT name, content, saved_at, saved_by
FROM saved
WHERE kind = :kind {ORDER BY name LIMIT :limit | AND name = :name};
