-- Stores the keys of consecutive publishes in one row instead of one row per key.

CREATE TABLE receipt_run (
  n INTEGER PRIMARY KEY,                  -- number of the row's last key; keys have no gaps
  queue_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,                   -- message stored under the first key; the others follow
  at_ms INTEGER NOT NULL,                 -- steady ms
  key_bytes INTEGER NOT NULL,             -- length of each key, 1 to 64
  keys BLOB NOT NULL                      -- the keys, one after the other
);
INSERT INTO receipt_run SELECT n, queue_id, seq, at_ms, length(key), key FROM receipt;
DROP TABLE receipt;
ALTER TABLE receipt_run RENAME TO receipt;
