-- The audit log, newest first and filtered, in slices of numbers so that no read takes long.

-- part: columns
audit_id, at_ms, actor, source, address, action, target, count, reason, result, detail, request_id

-- part: filter
(:actor IS NULL OR actor = :actor)
  AND (:action IS NULL OR action = :action
       OR substr(action, 1, length(:action) + 1) = :action || '.')
  AND (:result IS NULL OR result = :result
       OR (:result = 'refused' AND result NOT IN ('done', 'running', 'cancelled', 'interrupted')))
  AND (:target IS NULL OR target = :target)
  AND (:since IS NULL OR at_ms >= :since)
  AND (:upto IS NULL OR at_ms < :upto)

-- name: ends
-- The oldest and newest numbers; NULL if there is no row.
-- columns: first, last
SELECT (SELECT min(audit_id) FROM audit), (SELECT max(audit_id) FROM audit);

-- name: older
-- Rows below a number, newest first.
-- parameters: before (audit_id, exclusive), floor (inclusive), limit; filter (NULL matches any)
-- index: INTEGER PRIMARY KEY
SELECT {columns} FROM audit
WHERE audit_id < :before AND audit_id >= :floor AND {filter}
ORDER BY audit_id DESC LIMIT :limit;

-- name: newer
-- Rows above a number, oldest first.
-- parameters: after (audit_id, exclusive), ceiling (inclusive), limit; filter (NULL matches any)
-- index: INTEGER PRIMARY KEY
SELECT {columns} FROM audit
WHERE audit_id > :after AND audit_id <= :ceiling AND {filter}
ORDER BY audit_id LIMIT :limit;

-- name: newest_of_target
-- The newest row with a target.
-- parameters: target
-- index: audit_target
SELECT {columns} FROM audit WHERE target = :target ORDER BY audit_id DESC LIMIT 1;

-- name: bulk_job
-- The row of a bulk job.
-- parameters: audit_id
-- columns: at_ms, actor, action, target, count, result, detail
SELECT at_ms, actor, action, target, count, result, detail
FROM audit
WHERE audit_id = :audit_id;
