-- Bounds the texts of audit rows in bytes: any of them may come from a request, and the index of
-- ``target`` refuses texts of 2,704 bytes.
-- Counts the rows of callers without an identity apart: they have a bound of their own, so that
-- strangers cannot push out other rows.

-- A quarter of the bound in characters takes at most the bound in bytes.
UPDATE audit SET
  actor = left(actor, 128), address = left(address, 128), action = left(action, 128),
  target = left(target, 256), reason = left(reason, 1000), result = left(result, 128),
  detail = left(detail, 8192)
WHERE octet_length(actor) > 512 OR octet_length(address) > 512 OR octet_length(action) > 512
  OR octet_length(target) > 1024 OR octet_length(reason) > 4000 OR octet_length(result) > 512
  OR octet_length(detail) > 32768;
ALTER TABLE audit ADD CONSTRAINT audit_bounds CHECK (
  octet_length(actor) <= 512 AND octet_length(source) <= 512 AND octet_length(address) <= 512
  AND octet_length(action) <= 512 AND octet_length(target) <= 1024
  AND octet_length(reason) <= 4000 AND octet_length(result) <= 512
  AND octet_length(detail) <= 32768 AND octet_length(request_id) <= 512
);
CREATE INDEX audit_identity ON audit ((actor = 'nobody'), audit_id);

INSERT INTO counter (name, value)
SELECT name, value FROM (
  SELECT 'audit_rows' AS name, count(*) AS value FROM audit WHERE actor <> 'nobody'
  UNION ALL SELECT 'audit_refusals', count(*) FROM audit WHERE actor = 'nobody'
  UNION ALL SELECT 'audit_counted', max(audit_id) FROM audit
) AS counted WHERE value > 0;
