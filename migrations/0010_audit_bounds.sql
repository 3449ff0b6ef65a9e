-- Bounds the texts of audit rows in bytes: any of them may come from a request, and PostgreSQL's
-- index of ``target`` refuses texts of 2,704 bytes.  SQLite before 3.43 has no octet_length.
-- Counts the rows of callers without an identity apart: they have a bound of their own, so that
-- strangers cannot push out other rows.

CREATE TABLE audit_bounded (
  audit_id INTEGER PRIMARY KEY,
  at_ms INTEGER NOT NULL,                 -- Unix ms
  actor TEXT NOT NULL                     -- nobody: a caller without an identity was refused
    CHECK (length(CAST(actor AS BLOB)) <= 512),
  source TEXT NOT NULL                    -- ui, http or cli
    CHECK (length(CAST(source AS BLOB)) <= 512),
  address TEXT NOT NULL CHECK (length(CAST(address AS BLOB)) <= 512),
  action TEXT NOT NULL CHECK (length(CAST(action AS BLOB)) <= 512),
  target TEXT NOT NULL CHECK (length(CAST(target AS BLOB)) <= 1024),
  count INTEGER NOT NULL,
  reason TEXT NOT NULL CHECK (length(CAST(reason AS BLOB)) <= 4000),
  result TEXT NOT NULL                    -- done, running, interrupted, cancelled, or a refusal
    CHECK (length(CAST(result AS BLOB)) <= 512),
  detail TEXT NOT NULL                    -- JSON or empty: before and after of settings
    CHECK (length(CAST(detail AS BLOB)) <= 32768),
  request_id TEXT NOT NULL CHECK (length(CAST(request_id AS BLOB)) <= 512)
);
-- A quarter of the bound in characters takes at most the bound in bytes.
INSERT INTO audit_bounded SELECT audit_id, at_ms,
  CASE WHEN length(CAST(actor AS BLOB)) > 512 THEN substr(actor, 1, 128) ELSE actor END,
  CASE WHEN length(CAST(source AS BLOB)) > 512 THEN substr(source, 1, 128) ELSE source END,
  CASE WHEN length(CAST(address AS BLOB)) > 512 THEN substr(address, 1, 128) ELSE address END,
  CASE WHEN length(CAST(action AS BLOB)) > 512 THEN substr(action, 1, 128) ELSE action END,
  CASE WHEN length(CAST(target AS BLOB)) > 1024 THEN substr(target, 1, 256) ELSE target END,
  count,
  CASE WHEN length(CAST(reason AS BLOB)) > 4000 THEN substr(reason, 1, 1000) ELSE reason END,
  CASE WHEN length(CAST(result AS BLOB)) > 512 THEN substr(result, 1, 128) ELSE result END,
  CASE WHEN length(CAST(detail AS BLOB)) > 32768 THEN substr(detail, 1, 8192) ELSE detail END,
  substr(request_id, 1, 128)
FROM audit;
DROP TABLE audit;
ALTER TABLE audit_bounded RENAME TO audit;
CREATE INDEX audit_target ON audit (target, audit_id);
CREATE INDEX audit_identity ON audit ((actor = 'nobody'), audit_id);

INSERT OR REPLACE INTO counter (name, value)
SELECT name, value FROM (
  SELECT 'audit_rows' AS name, count(*) AS value FROM audit WHERE actor <> 'nobody'
  UNION ALL SELECT 'audit_refusals', count(*) FROM audit WHERE actor = 'nobody'
  UNION ALL SELECT 'audit_counted', max(audit_id) FROM audit
) AS counted WHERE value > 0;
