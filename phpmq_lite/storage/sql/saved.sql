-- What people saved under a name: views, templates, labels.

-- name: all
-- All of a kind, by name.
-- parameters: kind; limit
-- columns: name, content (JSON), saved_at, saved_by
SELECT name, content, saved_at, saved_by
FROM saved
WHERE kind = :kind
ORDER BY name
LIMIT :limit;

-- name: one
-- One saved thing.
-- parameters: kind; name
-- columns: name, content (JSON), saved_at, saved_by
SELECT name, content, saved_at, saved_by
FROM saved
WHERE kind = :kind AND name = :name;

-- name: save
-- Save under a name, over what was there.
-- parameters: kind, name, content, saved_at, saved_by
INSERT INTO saved (kind, name, content, saved_at, saved_by)
VALUES (:kind, :name, :content, :saved_at, :saved_by)
ON CONFLICT (kind, name) DO UPDATE SET
  content = excluded.content, saved_at = excluded.saved_at, saved_by = excluded.saved_by;

-- name: delete
-- parameters: kind, name
DELETE FROM saved WHERE kind = :kind AND name = :name;
