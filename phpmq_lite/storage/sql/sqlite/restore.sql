-- Changes to a restored copy before it replaces the database.

-- name: renew_history_id
-- Invalidates the offsets that history readers have stored.
INSERT INTO meta (name, value) VALUES ('history_id', lower(hex(randomblob(16))))
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: last_number
-- Highest number in use, for any version of the schema.
SELECT max(
  coalesce((SELECT value - 1 FROM counter WHERE name = 'next_number'), 0),
  coalesce((SELECT max(max(seq), max(position)) FROM message), 0),
  coalesce((SELECT max(max(seq), max(position)) FROM history), 0),
  coalesce((SELECT max(seq) FROM body), 0)
);

-- name: has_meta
-- Whether the schema includes a history id.
SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'meta');
