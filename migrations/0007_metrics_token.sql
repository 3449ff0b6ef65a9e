-- Adds the role metrics: tokens that may only read the metrics.

CREATE TABLE token_with_metrics (
  token_id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  sha256 BLOB NOT NULL UNIQUE,            -- of the token; the token itself is shown once
  role TEXT NOT NULL CHECK (role IN ('metrics', 'viewer', 'operator', 'admin')),
  queues TEXT NOT NULL DEFAULT '[]',
  created_at INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  expires_at INTEGER,                     -- NULL: never
  last_used_at INTEGER
);
INSERT INTO token_with_metrics SELECT * FROM token;
DROP TABLE token;
ALTER TABLE token_with_metrics RENAME TO token;
