-- Bulk work as the audit has it, and the room for what it deletes.

-- name: row
-- The audit row of a piece of bulk work.
-- parameters: audit_id
-- columns: at_ms, actor, action, target, count, result, detail
SELECT at_ms, actor, action, target, count, result, detail
FROM audit
WHERE audit_id = :audit_id;

-- name: trash
-- How much of the history was deleted by somebody.
-- columns: rows, bytes
SELECT
  coalesce((SELECT value FROM counter WHERE name = 'deleted_rows'), 0),
  coalesce((SELECT value FROM counter WHERE name = 'deleted_bytes'), 0);
