-- Bulk work as the audit has it.

-- name: row
-- The audit row of a piece of bulk work.
-- parameters: audit_id
-- columns: at_ms, actor, action, target, count, result, detail
SELECT at_ms, actor, action, target, count, result, detail
FROM audit
WHERE audit_id = :audit_id;
