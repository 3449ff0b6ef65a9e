-- Who did what.  Written in the transaction of the change, read for the page.

-- name: insert
-- parameters: audit_id, at_ms, actor, source, address, action, target, number, reason, result,
--   detail, request_id
INSERT INTO audit (audit_id, at_ms, actor, source, address, action, target, count, reason, result,
  detail, request_id) VALUES (:audit_id, :at_ms, :actor, :source, :address, :action, :target, :number, :reason, :result, :detail, :request_id);

-- name: advance
-- A slice of bulk work is done: its row counts along.
-- parameters: more, result, audit_id
UPDATE audit SET count = count + :more, result = :result WHERE audit_id = :audit_id;

-- name: interrupt
-- At start: what was running when the broker stopped.
UPDATE audit SET result = 'interrupted' WHERE result = 'running';
