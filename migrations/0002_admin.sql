-- What the admin keeps: who may come in, who did what, what people saved, how it went over time.
-- Times: *_at are Unix milliseconds.

CREATE TABLE user (
  user_id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,              -- 1 to 64 characters
  password TEXT NOT NULL,                 -- argon2id, in its own encoding
  role TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  queues TEXT NOT NULL DEFAULT '[]',      -- globs, a JSON list; empty: all queues
  created_at INTEGER NOT NULL,
  last_login_at INTEGER
);

CREATE TABLE token (
  token_id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  sha256 BLOB NOT NULL UNIQUE,            -- of the token; the token itself is shown once
  role TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  queues TEXT NOT NULL DEFAULT '[]',
  created_at INTEGER NOT NULL,
  created_by TEXT NOT NULL,
  expires_at INTEGER,                     -- NULL: never
  last_used_at INTEGER
);

CREATE TABLE session (
  session_id INTEGER PRIMARY KEY,
  sha256 BLOB NOT NULL UNIQUE,            -- of the cookie
  user_id INTEGER NOT NULL,
  csrf TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  seen_at INTEGER NOT NULL,               -- written at most every five minutes
  expires_at INTEGER NOT NULL,            -- whatever happens
  address TEXT NOT NULL,
  agent TEXT NOT NULL
);
CREATE INDEX session_user ON session (user_id);

CREATE TABLE audit (                      -- appended only; a running row counts along
  audit_id INTEGER PRIMARY KEY,
  at_ms INTEGER NOT NULL,                 -- Unix ms
  actor TEXT NOT NULL,
  source TEXT NOT NULL,                   -- ui, http or cli
  address TEXT NOT NULL,
  action TEXT NOT NULL,
  target TEXT NOT NULL,
  count INTEGER NOT NULL,
  reason TEXT NOT NULL,
  result TEXT NOT NULL,                   -- done, running, interrupted, cancelled, or a refusal
  detail TEXT NOT NULL,                   -- JSON or empty: before and after of settings
  request_id TEXT NOT NULL
);
CREATE INDEX audit_target ON audit (target, audit_id);

CREATE TABLE rollup (                     -- how each queue went, in spans of equal length
  span_s INTEGER NOT NULL,                -- 60 or 900
  queue_id INTEGER NOT NULL,              -- 0: all without rows of their own, -1: all, -2: all .dlq
  at_s INTEGER NOT NULL,                  -- Unix seconds, the beginning
  published INTEGER NOT NULL, dispatched INTEGER NOT NULL, redelivered INTEGER NOT NULL,
  acked INTEGER NOT NULL, requeued INTEGER NOT NULL, expired INTEGER NOT NULL,
  dead INTEGER NOT NULL, deleted INTEGER NOT NULL,  -- what happened within
  ready INTEGER NOT NULL, held INTEGER NOT NULL, bytes INTEGER NOT NULL,  -- at the end
  oldest_age_ms INTEGER NOT NULL,         -- of the oldest ready message, at the end
  wait BLOB, hold BLOB,                   -- histograms; NULL: nothing was measured
  PRIMARY KEY (span_s, queue_id, at_s)
) WITHOUT ROWID;
CREATE INDEX rollup_time ON rollup (span_s, at_s);

CREATE TABLE saved (                      -- what people saved under a name
  kind TEXT NOT NULL,                     -- view, template or label
  name TEXT NOT NULL,
  content TEXT NOT NULL,                  -- JSON
  saved_at INTEGER NOT NULL,
  saved_by TEXT NOT NULL,
  PRIMARY KEY (kind, name)
) WITHOUT ROWID;

CREATE TABLE start (                      -- one row a start of the broker
  start_id INTEGER PRIMARY KEY,
  at_ms INTEGER NOT NULL,                 -- Unix ms
  version TEXT NOT NULL,
  was_clean INTEGER NOT NULL,             -- the stop before it, 0 or 1
  down_from_ms INTEGER,                   -- when the broker was last seen; NULL: the first start
  report TEXT NOT NULL,                   -- JSON: what was found, put back, checked
  dismissed_by TEXT
);

-- AUTOINCREMENT wrote a page of its own in every commit.  No number of these two comes again
-- without it: the newest row of the history stays, and so does the newest key.  What the history
-- sums up to is counted with its places from now on.
CREATE TABLE settled (                    -- as history was
  "offset" INTEGER PRIMARY KEY,           -- gapless, ever increasing
  seq INTEGER NOT NULL,
  token INTEGER NOT NULL,
  queue_id INTEGER NOT NULL,
  position INTEGER NOT NULL,
  outcome INTEGER NOT NULL CHECK (outcome BETWEEN 2 AND 5),  -- acked, expired, dead, deleted
  reason TEXT,
  settled_at INTEGER NOT NULL,            -- Unix ms
  ttl_s INTEGER, deadline_ms INTEGER,     -- as in message, up to source_reason
  published_at INTEGER NOT NULL,
  first_dispatched_at INTEGER, last_dispatched_at INTEGER,
  deliveries INTEGER NOT NULL, charged INTEGER NOT NULL,
  size INTEGER NOT NULL, crc INTEGER NOT NULL,
  publisher INTEGER, consumer INTEGER,
  urn TEXT, trace_id TEXT, meta_id TEXT, attempts INTEGER,
  source_seq INTEGER, source_queue_id INTEGER, source_reason TEXT
);
INSERT INTO settled SELECT * FROM history;
DROP TABLE history;
ALTER TABLE settled RENAME TO history;
CREATE INDEX history_seq ON history (seq);
CREATE TABLE known (                      -- as receipt was
  n INTEGER PRIMARY KEY,
  queue_id INTEGER NOT NULL,
  key BLOB NOT NULL,                      -- 1 to 64 bytes
  seq INTEGER NOT NULL,                   -- the message stored under it
  at_ms INTEGER NOT NULL                  -- steady ms
);
INSERT INTO known SELECT * FROM receipt;
DROP TABLE receipt;
ALTER TABLE known RENAME TO receipt;
DELETE FROM counter
WHERE name IN ('history_rows', 'history_bytes', 'deleted_rows', 'deleted_bytes')
  -- Where nothing is left offsets begin anew; nobody has followed them yet.
  OR name IN ('history_lo', 'deleted_lo') AND NOT EXISTS (SELECT 1 FROM history);
-- The same where the newest have left and older ones stay, of the other kind: no row comes behind
-- a front that has passed it.
UPDATE counter SET value = 1 + (SELECT max("offset") FROM history)
WHERE name IN ('history_lo', 'deleted_lo') AND value > 1 + (SELECT max("offset") FROM history);

-- The number that comes next.  Most batches use numbers for new messages only, and each of these
-- has a body; all others, and whoever takes bodies away, write the counter.
CREATE VIEW line (next_number) AS SELECT max(
  coalesce((SELECT value FROM counter WHERE name = 'next_number'), 1),
  coalesce((SELECT max(seq) FROM body), 0) + 1
);

-- Where the settled messages of each queue are.  An index of history would cost each message that
-- settles a page of its own to write; this is filled behind, many rows at once, up to the offset
-- in the counter `placed_upto`.  What lies behind it is a short tail, read by offset.
-- Within the offsets of a block a page takes many of the rows that are entered at once, of however
-- many queues they are; without blocks each of 1,000 queues had pages of its own, and a row took
-- 20 µs instead of 2.  A queue is looked up once in each block.
CREATE TABLE history_place (
  block INTEGER NOT NULL,                 -- offset >> 16
  queue_id INTEGER NOT NULL,
  outcome INTEGER NOT NULL,               -- as in history
  "offset" INTEGER NOT NULL,
  PRIMARY KEY (block, queue_id, outcome, "offset")
) WITHOUT ROWID;

-- The same by number, for searches that show alive and settled messages together.
CREATE TABLE history_number (
  block INTEGER NOT NULL,                 -- seq >> 16
  queue_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  "offset" INTEGER NOT NULL,
  outcome INTEGER NOT NULL,
  PRIMARY KEY (block, queue_id, seq, "offset")
) WITHOUT ROWID;

-- Messages by trace: settled ones up to `placed_upto`, alive ones up to the number in the counter
-- `traced_upto`, and whoever settled behind that since.  What is there of others is read itself.
-- Traces are random: were they in one order, each row would dirty a page of its own.  Within the
-- numbers of a block a page takes many of the rows that are entered at once; a trace is looked up
-- once in each block.
CREATE TABLE trace_place (
  block INTEGER NOT NULL,                 -- seq >> 14
  trace_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (block, trace_id, seq)
) WITHOUT ROWID;

-- What leaves the history leaves its places, however it leaves and whether it has them yet or not.
CREATE TRIGGER history_leaves AFTER DELETE ON history BEGIN
  DELETE FROM history_place
  WHERE block = OLD."offset" >> 16 AND queue_id = OLD.queue_id AND outcome = OLD.outcome
    AND "offset" = OLD."offset";
  DELETE FROM history_number
  WHERE block = OLD.seq >> 16 AND queue_id = OLD.queue_id AND seq = OLD.seq
    AND "offset" = OLD."offset";
END;
CREATE TRIGGER history_leaves_traces AFTER DELETE ON history WHEN OLD.trace_id IS NOT NULL BEGIN
  DELETE FROM trace_place
  WHERE block = OLD.seq >> 14 AND trace_id = OLD.trace_id AND seq = OLD.seq;
END;

-- Each message alive stands in one of two indexes.  Most that go through are dispatched in the
-- batch of their publish: they cost one entry, and its page, instead of two.
DROP INDEX message_place;
DROP INDEX message_held;
CREATE INDEX message_place ON message (queue_id, position) WHERE state = 0;
CREATE INDEX message_held ON message (queue_id, position) WHERE state = 1;

-- Alive messages that these do not have in the order of their numbers: those requeued,
-- moved, forwarded or restored.
CREATE INDEX message_moved ON message (queue_id) WHERE position <> seq;

CREATE INDEX history_unusual ON history (outcome, "offset") WHERE outcome <> 2;
