-- The audit log, filtered and newest first, in slices of audit_ids so that no read takes long.

-- part: columns
audit_id, at_ms, actor, source, address, action, target, count, reason, result, detail, request_id

-- part: filter
(CAST(:actor AS text) IS NULL OR actor = :actor)
  AND (CAST(:action AS text) IS NULL OR action = :action
       OR substr(action, 1, length(:action) + 1) = :action || '.')
  AND (CAST(:result AS text) IS NULL OR result = :result
       OR (:result = 'refused' AND result NOT IN ('done', 'running', 'cancelled', 'interrupted')))
  AND (CAST(:target AS text) IS NULL OR target = :target)
  AND (CAST(:since AS bigint) IS NULL OR at_ms >= :since)
  AND (CAST(:upto AS bigint) IS NULL OR at_ms < :upto)

-- name: ends
-- Lowest and highest audit_ids; NULL if there are no rows.
-- columns: first, last
SELECT (SELECT min(audit_id) FROM audit), (SELECT max(audit_id) FROM audit);

-- name: older
-- twin: newer
-- Rows below or above an audit_id, the nearest first.
-- parameters: start (exclusive), stop (inclusive): audit_ids; limit; filter (NULL matches any)
-- index: PRIMARY KEY
SELECT {columns} FROM audit
WHERE audit_id {< | >} :start AND audit_id {>= | <=} :stop AND {filter}
ORDER BY audit_id {DESC | ASC} LIMIT :limit;

-- name: newest_of_target
-- twin: bulk_job
-- The newest row with a given target, or the row of a bulk job.
-- index: {audit_target | PRIMARY KEY}
SELECT {columns} FROM audit
WHERE {target = :target ORDER BY audit_id DESC LIMIT 1 | audit_id = :audit_id};
