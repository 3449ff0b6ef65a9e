-- Who may come in: users, API tokens, sessions.  Read whole at start, written row by row.

-- name: users
-- columns: user_id, name, password, role, queues, created_at, last_login_at
SELECT user_id, name, password, role, queues, created_at, last_login_at FROM user;

-- name: tokens
-- columns: token_id, name, sha256, role, queues, created_at, created_by, expires_at, last_used_at
SELECT token_id, name, sha256, role, queues, created_at, created_by, expires_at, last_used_at
FROM token;

-- name: sessions
-- columns: session_id, sha256, user_id, csrf, created_at, seen_at, expires_at, address, agent
SELECT session_id, sha256, user_id, csrf, created_at, seen_at, expires_at, address, agent
FROM session;

-- name: known_addresses
-- From where somebody logged in lately: the newest rows of the audit only, it has no index.
-- parameters: since (at_ms)
SELECT DISTINCT address
FROM (SELECT at_ms, address, action, result FROM audit ORDER BY audit_id DESC LIMIT 20000)
WHERE action = 'session.login' AND result = 'done' AND at_ms >= :since;

-- name: has_users
-- columns: 1 where the table of users is there, 0 in an older database
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'user');

-- name: has_admin
-- columns: 1 where there is a user who may do everything
SELECT EXISTS (SELECT 1 FROM user WHERE role = 'admin');

-- name: add_user
-- parameters: user_id, name, password, role, queues, created_at
INSERT INTO user (user_id, name, password, role, queues, created_at) VALUES (:user_id, :name, :password, :role, :queues, :created_at);

-- name: set_password
-- parameters: password, user_id
UPDATE user SET password = :password WHERE user_id = :user_id;

-- name: set_rights
-- parameters: role, queues, user_id
UPDATE user SET role = :role, queues = :queues WHERE user_id = :user_id;

-- name: set_last_login
-- parameters: at_ms, user_id
UPDATE user SET last_login_at = :at_ms WHERE user_id = :user_id;

-- name: delete_user
-- parameters: user_id
DELETE FROM user WHERE user_id = :user_id;

-- name: add_token
-- parameters: token_id, name, sha256, role, queues, created_at, created_by, expires_at
INSERT INTO token (token_id, name, sha256, role, queues, created_at, created_by, expires_at)
VALUES (:token_id, :name, :sha256, :role, :queues, :created_at, :created_by, :expires_at);

-- name: set_token_used
-- parameters: at_ms, token_id
UPDATE token SET last_used_at = :at_ms WHERE token_id = :token_id;

-- name: expire_token
-- parameters: expires_at, token_id
UPDATE token SET expires_at = :expires_at WHERE token_id = :token_id;

-- name: delete_token
-- parameters: token_id
DELETE FROM token WHERE token_id = :token_id;

-- name: add_session
-- parameters: session_id, sha256, user_id, csrf, created_at, seen_at, expires_at, address, agent
INSERT INTO session
  (session_id, sha256, user_id, csrf, created_at, seen_at, expires_at, address, agent)
VALUES (:session_id, :sha256, :user_id, :csrf, :created_at, :seen_at, :expires_at, :address, :agent);

-- name: set_session_seen
-- parameters: at_ms, session_id
UPDATE session SET seen_at = :at_ms WHERE session_id = :session_id;

-- name: delete_session
-- parameters: session_id
DELETE FROM session WHERE session_id = :session_id;

-- name: delete_user_sessions
-- parameters: user_id
-- index: session_user
DELETE FROM session WHERE user_id = :user_id;
