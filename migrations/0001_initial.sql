-- The schema of version 0.1.0.  Times: *_at are Unix milliseconds; "steady ms" are milliseconds of
-- the wall clock less the steps by which it was set.  docs/reference/tables.md has these comments.

CREATE TABLE queue (                      -- the queues and their settings
  queue_id INTEGER PRIMARY KEY,           -- its number
  name TEXT NOT NULL UNIQUE,              -- 1 to 255 bytes of UTF-8, 259 for NAME.dlq; no control
                                          -- characters except LF
  created_at INTEGER NOT NULL,            -- Unix ms
  created_by TEXT NOT NULL DEFAULT '',    -- an actor of the audit, or the address of a connection;
                                          -- empty: unknown
  payload_policy TEXT,                    -- opaque, observe, envelope; here and in the next five
                                          -- NULL: default
  on_expire TEXT,                         -- history, dead_letter or forward:<queue>
  max_deliveries INTEGER,                 -- charged deliveries; 0: no limit
  ack_timeout_s INTEGER,                  -- seconds; 0: none
  max_messages INTEGER,                   -- live messages; 0: no limit
  max_bytes INTEGER,                      -- bytes of live bodies; 0: no limit
  settings TEXT NOT NULL DEFAULT '{}',    -- all other settings, a JSON object
  live_count INTEGER NOT NULL DEFAULT 0,  -- live messages
  live_bytes INTEGER NOT NULL DEFAULT 0   -- bytes of their bodies
);

CREATE TABLE message (                    -- live messages
  seq INTEGER PRIMARY KEY,                -- arrival number, never reused
  token INTEGER NOT NULL,                 -- 63 random bits; wire id = hex(seq) || hex(token)
  queue_id INTEGER NOT NULL,              -- of `queue`
  position INTEGER NOT NULL,              -- order in the queue
  state INTEGER NOT NULL CHECK (state IN (0, 1)),  -- 0 ready, 1 dispatched
  ttl_s INTEGER,                          -- seconds, as published; NULL: never expires
  deadline_ms INTEGER,                    -- steady ms; NULL: never expires
  published_at INTEGER NOT NULL,          -- Unix ms
  first_dispatched_at INTEGER,            -- Unix ms
  last_dispatched_at INTEGER,             -- Unix ms
  deliveries INTEGER NOT NULL DEFAULT 0,  -- dispatches
  charged INTEGER NOT NULL DEFAULT 0,     -- those that count for max_deliveries
  size INTEGER NOT NULL,                  -- bytes of the body
  crc INTEGER NOT NULL,                   -- CRC-32 of seq (8 bytes, big-endian) and body
  publisher INTEGER,                      -- client number
  consumer INTEGER,                       -- client number of the last consumer
  urn TEXT, trace_id TEXT, meta_id TEXT, attempts INTEGER,  -- of an envelope
  source_seq INTEGER,                     -- dead-letter record: the message it is about
  source_queue_id INTEGER,                -- dead-letter record: where that one died
  source_reason TEXT                      -- dead-letter record: why
);
CREATE INDEX message_deadline ON message (deadline_ms) WHERE state = 0 AND deadline_ms IS NOT NULL;
-- Each live message is in one of two indexes.  Most are dispatched in the batch of their publish:
-- they cost one entry, and its page, instead of two.
CREATE INDEX message_place ON message (queue_id, position) WHERE state = 0;
CREATE INDEX message_held ON message (queue_id, position) WHERE state = 1;
-- Live messages that these two do not have in the order of their numbers: those requeued, moved,
-- forwarded or restored.
CREATE INDEX message_moved ON message (queue_id) WHERE position <> seq;
-- When a message dies, the record that a worker wrote about it is looked up.
CREATE INDEX message_source ON message (source_seq) WHERE source_seq IS NOT NULL;

CREATE TABLE body (                       -- the content of messages, live and settled
  seq INTEGER PRIMARY KEY,                -- of the message
  content BLOB NOT NULL                   -- as sent; stays until retention takes the history row
);

CREATE TABLE history (                    -- settled messages, one row each
  "offset" INTEGER PRIMARY KEY,           -- gapless, ever increasing
  seq INTEGER NOT NULL,
  token INTEGER NOT NULL,
  queue_id INTEGER NOT NULL,
  position INTEGER NOT NULL,
  outcome INTEGER NOT NULL                -- 2 acked, 3 expired, 4 dead, 5 deleted
    CHECK (outcome BETWEEN 2 AND 5),
  reason TEXT,                            -- why, where there is more to say
  settled_at INTEGER NOT NULL,            -- Unix ms
  ttl_s INTEGER, deadline_ms INTEGER,
  published_at INTEGER NOT NULL,
  first_dispatched_at INTEGER, last_dispatched_at INTEGER,
  deliveries INTEGER NOT NULL, charged INTEGER NOT NULL,
  size INTEGER NOT NULL, crc INTEGER NOT NULL,
  publisher INTEGER, consumer INTEGER,
  urn TEXT, trace_id TEXT, meta_id TEXT, attempts INTEGER,
  source_seq INTEGER, source_queue_id INTEGER, source_reason TEXT
);
CREATE INDEX history_seq ON history (seq);
CREATE INDEX history_unusual ON history (outcome, "offset") WHERE outcome <> 2;

-- An index of history by queue would cost each message that settles a page of its own to write.
-- This table is filled later, many rows at once, up to the offset in the counter `placed_upto`;
-- behind it is a short tail, which is read by offset.  It has one row for messages with consecutive
-- offsets, the same queue and outcome, and increasing seqs.  Within a block, a page takes many of
-- the rows that are entered at once, of any number of queues; without blocks, each of 1,000 queues
-- had pages of its own, and a row took 20 µs instead of 2.  A queue is looked up once per block.
-- Queries read the messages of a run from history, so a run may outlive some of them: it is removed
-- once the whole block is older than the history.
CREATE TABLE history_run (                -- an index of the history by queue, outcome and seq;
                                          -- filled behind
  block INTEGER NOT NULL,                 -- first_offset >> 16
  queue_id INTEGER NOT NULL,              -- of `queue`
  outcome INTEGER NOT NULL,               -- as in history
  first_offset INTEGER NOT NULL,          -- of the first message; no run crosses a multiple of
                                          -- 1,024
  length INTEGER NOT NULL,                -- offsets; those missing in history count as well
  seq_block INTEGER NOT NULL,             -- first_seq >> 16
  first_seq INTEGER NOT NULL,             -- the lowest; no run crosses a multiple of 4,096
  PRIMARY KEY (block, queue_id, outcome, first_offset)
) WITHOUT ROWID;
CREATE INDEX history_run_seq ON history_run (seq_block, queue_id, first_seq, length);

-- Settled messages up to `placed_upto`, live ones up to the number in the counter `traced_upto`,
-- and
-- those that settled behind that since; all others are read themselves.  Traces are random: in one
-- order, each row would change a page of its own.  Retention removes the rows: a trigger, even one
-- that never fired, made removing a row of the history cost half as much again.
CREATE TABLE trace_place (                -- messages by trace, filled behind
  block INTEGER NOT NULL,                 -- seq >> 14
  trace_id TEXT NOT NULL,                 -- of an envelope
  seq INTEGER NOT NULL,                   -- of the message
  PRIMARY KEY (block, trace_id, seq)
) WITHOUT ROWID;

CREATE TABLE event (                      -- exceptional steps of a message
  event_id INTEGER PRIMARY KEY,           -- in the order of time
  seq INTEGER NOT NULL,                   -- of the message
  at_ms INTEGER NOT NULL,                 -- Unix ms
  kind TEXT NOT NULL,                     -- requeue, return, forward, redrive, …
  detail TEXT,                            -- by kind: a queue, a reason, …
  count INTEGER NOT NULL DEFAULT 1,       -- of equal returns in a row; of kind more, of all events
                                          -- between the others
  last_at INTEGER                         -- Unix ms of the last one that is counted; NULL: the row
                                          -- is one event
);
CREATE INDEX event_seq ON event (seq);

-- Bounds the rows of a message.  A view, because `store copy` inserts rows into the table as they
-- are.
CREATE VIEW event_entry (seq, at_ms, kind, detail) AS SELECT seq, at_ms, kind, detail FROM event;
CREATE TRIGGER event_entry_added INSTEAD OF INSERT ON event_entry BEGIN
  UPDATE event SET count = count + 1, last_at = NEW.at_ms
  WHERE NEW.kind = 'return' AND kind = 'return' AND detail IS NEW.detail
    AND event_id = (SELECT max(event_id) FROM event WHERE seq = NEW.seq);
  INSERT INTO event (seq, at_ms, kind, detail)
  SELECT NEW.seq, NEW.at_ms, NEW.kind, NEW.detail WHERE changes() = 0;
  -- The fifth row counts those between the first 4 and the last 11.
  UPDATE event SET kind = 'more', detail = NULL, (count, last_at) = (
    SELECT event.count + folded.count, coalesce(folded.last_at, folded.at_ms)
    FROM event AS folded WHERE folded.seq = NEW.seq AND folded.kind <> 'restore'
    ORDER BY folded.event_id LIMIT 1 OFFSET 5)
  WHERE event_id = (SELECT event_id FROM event WHERE seq = NEW.seq AND kind <> 'restore'
      ORDER BY event_id LIMIT 1 OFFSET 4)
    AND (SELECT count(*) FROM event WHERE seq = NEW.seq) > 16;
  DELETE FROM event
  WHERE event_id = (SELECT event_id FROM event WHERE seq = NEW.seq AND kind <> 'restore'
      ORDER BY event_id LIMIT 1 OFFSET 5)
    AND (SELECT count(*) FROM event WHERE seq = NEW.seq) > 16;
END;

CREATE TABLE client (                     -- one row per connection
  client INTEGER PRIMARY KEY,             -- its number; 0 is the admin, pages and HTTP API
  kind TEXT NOT NULL,                     -- tcp, unix, admin, cli
  address TEXT NOT NULL,                  -- where it came from
  opened_at INTEGER NOT NULL,             -- Unix ms
  closed_at INTEGER,                      -- Unix ms; NULL: open, or the broker ended first
  framing TEXT, revision TEXT,            -- seen when it closed
  reason TEXT                             -- why it closed
);
INSERT INTO client (client, kind, address, opened_at) VALUES (0, 'admin', 'admin', 0);
CREATE INDEX client_closed ON client (closed_at);

-- Keys of consecutive publishes share a row.  The newest row stays, so no number is given twice.
CREATE TABLE receipt (                    -- keys of confirmed publishes, oldest first
  n INTEGER PRIMARY KEY,                  -- number of the row's last key; keys have no gaps
  queue_id INTEGER NOT NULL,              -- of `queue`
  seq INTEGER NOT NULL,                   -- message stored under the first key; the others follow
  at_ms INTEGER NOT NULL,                 -- steady ms
  key_bytes INTEGER NOT NULL,             -- length of each key, 1 to 64
  keys BLOB NOT NULL                      -- the keys, one after the other
);

CREATE TABLE counter (                    -- one number each
  name TEXT PRIMARY KEY,                  -- next_number, placed_upto, …
  value INTEGER NOT NULL                  -- what it is at
) WITHOUT ROWID;

-- Most batches use numbers for new messages only, and each of these has a body.  All others, and
-- those that remove bodies, write the counter.
CREATE VIEW line (next_number) AS SELECT max(
  coalesce((SELECT value FROM counter WHERE name = 'next_number'), 1),
  coalesce((SELECT max(seq) FROM body), 0) + 1
);

CREATE TABLE user (                       -- who may log in
  user_id INTEGER PRIMARY KEY,            -- its number
  name TEXT NOT NULL UNIQUE,              -- 1 to 64 characters
  password TEXT NOT NULL,                 -- argon2id, in its own encoding
  role TEXT NOT NULL                      -- viewer, operator or admin
    CHECK (role IN ('viewer', 'operator', 'admin')),
  queues TEXT NOT NULL DEFAULT '[]',      -- globs, a JSON list; empty: all queues
  created_at INTEGER NOT NULL,            -- Unix ms
  last_login_at INTEGER                   -- Unix ms; NULL: never
);

CREATE TABLE token (                      -- tokens of programs
  token_id INTEGER PRIMARY KEY,           -- its number
  name TEXT NOT NULL UNIQUE,              -- its name
  sha256 BLOB NOT NULL UNIQUE,            -- of the token; the token itself is shown once
  role TEXT NOT NULL                      -- metrics, viewer, operator or admin
    CHECK (role IN ('metrics', 'viewer', 'operator', 'admin')),
  queues TEXT NOT NULL DEFAULT '[]',      -- globs, a JSON list; empty: all queues
  created_at INTEGER NOT NULL,            -- Unix ms
  created_by TEXT NOT NULL,               -- who created it
  expires_at INTEGER,                     -- NULL: never
  last_used_at INTEGER                    -- Unix ms; NULL: never
);

CREATE TABLE session (                    -- logins of browsers
  session_id INTEGER PRIMARY KEY,         -- its number
  sha256 BLOB NOT NULL UNIQUE,            -- of the cookie
  user_id INTEGER NOT NULL,               -- of `user`
  csrf TEXT NOT NULL,                     -- token of its forms
  created_at INTEGER NOT NULL,            -- Unix ms
  seen_at INTEGER NOT NULL,               -- Unix ms, written at most every five minutes
  expires_at INTEGER NOT NULL,            -- Unix ms, whatever happens
  address TEXT NOT NULL,                  -- where it came from
  agent TEXT NOT NULL                     -- what the browser calls itself
);
CREATE INDEX session_user ON session (user_id);

-- Texts have bounds in bytes, because any of them may come from a request; PostgreSQL's index of
-- `target` refuses texts of 2,704 bytes.  SQLite before 3.43 has no octet_length.
CREATE TABLE audit (                      -- who did what; rows are only appended
  audit_id INTEGER PRIMARY KEY,           -- its number
  at_ms INTEGER NOT NULL,                 -- Unix ms
  actor TEXT NOT NULL                     -- who: a user, a token, or the machine itself; nobody: a
                                          -- caller without an identity was refused
    CHECK (length(CAST(actor AS BLOB)) <= 512),
  source TEXT NOT NULL                    -- ui, http or cli
    CHECK (length(CAST(source AS BLOB)) <= 512),
  address TEXT NOT NULL                   -- where it came from
    CHECK (length(CAST(address AS BLOB)) <= 512),
  action TEXT NOT NULL                    -- queue.purge, message.delete, …
    CHECK (length(CAST(action AS BLOB)) <= 512),
  target TEXT NOT NULL                    -- queue, message id, user, …
    CHECK (length(CAST(target AS BLOB)) <= 1024),
  count INTEGER NOT NULL,                 -- of messages, queues, … it was about
  reason TEXT NOT NULL                    -- what the actor gave as reason
    CHECK (length(CAST(reason AS BLOB)) <= 4000),
  result TEXT NOT NULL                    -- done, running, interrupted, cancelled, or a refusal
    CHECK (length(CAST(result AS BLOB)) <= 512),
  detail TEXT NOT NULL                    -- JSON or empty: before and after of settings
    CHECK (length(CAST(detail AS BLOB)) <= 32768),
  request_id TEXT NOT NULL                -- as in the log and in the answer
    CHECK (length(CAST(request_id AS BLOB)) <= 512)
);
CREATE INDEX audit_target ON audit (target, audit_id);
-- Callers without an identity have a bound of their own, so that they cannot push out other rows.
CREATE INDEX audit_identity ON audit ((actor = 'nobody'), audit_id);

CREATE TABLE rollup (                     -- how each queue went, in spans of equal length
  span_s INTEGER NOT NULL,                -- 60 or 900
  queue_id INTEGER NOT NULL,              -- 0: all without rows of their own, -1: all, -2: all .dlq
  at_s INTEGER NOT NULL,                  -- Unix seconds, the beginning
  published INTEGER NOT NULL, dispatched INTEGER NOT NULL,  -- what happened within
  redelivered INTEGER NOT NULL, acked INTEGER NOT NULL,  -- what happened within
  requeued INTEGER NOT NULL, expired INTEGER NOT NULL,  -- what happened within
  dead INTEGER NOT NULL, deleted INTEGER NOT NULL,  -- what happened within
  ready INTEGER NOT NULL, held INTEGER NOT NULL, bytes INTEGER NOT NULL,  -- at the end
  oldest_age_ms INTEGER NOT NULL,         -- of the oldest ready message, at the end
  wait BLOB, hold BLOB,                   -- histograms; NULL: nothing was measured
  PRIMARY KEY (span_s, queue_id, at_s)
) WITHOUT ROWID;
CREATE INDEX rollup_time ON rollup (span_s, at_s);

CREATE TABLE saved (                      -- what people saved under a name
  kind TEXT NOT NULL,                     -- view, template or label
  name TEXT NOT NULL,                     -- its name
  content TEXT NOT NULL,                  -- JSON
  saved_at INTEGER NOT NULL,              -- Unix ms
  saved_by TEXT NOT NULL,                 -- who
  PRIMARY KEY (kind, name)
) WITHOUT ROWID;

CREATE TABLE start (                      -- one row per start of the broker
  start_id INTEGER PRIMARY KEY,           -- its number
  at_ms INTEGER NOT NULL,                 -- Unix ms
  version TEXT NOT NULL,                  -- of the broker
  was_clean INTEGER NOT NULL,             -- the stop before it, 0 or 1
  down_from_ms INTEGER,                   -- when the broker was last seen; NULL: the first start
  report TEXT NOT NULL,                   -- JSON: what was found, put back, checked
  dismissed_by TEXT                       -- who has seen its report
);

CREATE TABLE meta (                       -- one text each
  name TEXT PRIMARY KEY,                  -- history_id: 32 hex digits, made at the first start
  value TEXT NOT NULL                     -- its text
) WITHOUT ROWID;

CREATE TABLE subscription (               -- holds messages of one queue, without a connection
  subscription_id INTEGER PRIMARY KEY,    -- its number
  name TEXT NOT NULL UNIQUE,              -- its name
  queue_id INTEGER NOT NULL,              -- of `queue`
  next_claim INTEGER NOT NULL,            -- claims are numbered from 1; below it all are given
  acked_upto INTEGER NOT NULL,            -- the last claim that was acknowledged or released
  created_at INTEGER NOT NULL             -- Unix ms
);

-- A claimed message is dispatched (state 1).  A number is not given twice.
CREATE TABLE claim (                      -- messages that a subscription holds, until they settle
                                          -- or are released
  subscription_id INTEGER NOT NULL,       -- of `subscription`
  claim INTEGER NOT NULL,                 -- its number
  seq INTEGER NOT NULL,                   -- of the message
  claimed_at INTEGER NOT NULL,            -- Unix ms
  PRIMARY KEY (subscription_id, claim)
) WITHOUT ROWID;
CREATE UNIQUE INDEX claim_seq ON claim (seq);

CREATE TABLE stage (                      -- rows that wait for their publish, by token
  stage_id INTEGER PRIMARY KEY,           -- its number
  token TEXT UNIQUE,                      -- NULL: published or dropped, its rows are being removed
  created_at INTEGER NOT NULL,            -- Unix ms
  until_ms INTEGER NOT NULL,              -- steady ms: dropped then
  "rows" INTEGER NOT NULL,                -- how many
  bytes INTEGER NOT NULL,                 -- of the bodies
  is_whole INTEGER NOT NULL               -- 1: its last row is there
);

CREATE TABLE stage_part (                 -- what is staged for each queue
  stage_id INTEGER NOT NULL,              -- of `stage`
  queue_id INTEGER NOT NULL,              -- of `queue`
  "rows" INTEGER NOT NULL,                -- how many
  bytes INTEGER NOT NULL,                 -- of the bodies
  bad_rows INTEGER NOT NULL,              -- of them: dead at once when they are published
  bad_bytes INTEGER NOT NULL,             -- of their bodies
  least_ttl_s INTEGER,                    -- NULL: none expires
  policy TEXT NOT NULL,                   -- by which they were validated; empty: the queue
                                          -- validates nothing
  PRIMARY KEY (stage_id, queue_id)
) WITHOUT ROWID;

CREATE TABLE stage_row (                  -- what is staged, row by row
  row_id INTEGER PRIMARY KEY,             -- stage_id << 17 | its place among the rows of the token
  queue_id INTEGER NOT NULL,              -- of `queue`
  ttl_s INTEGER,                          -- from the publish on; NULL: never expires
  token INTEGER NOT NULL,                 -- 63 random bits, of the message
  urn TEXT, trace_id TEXT, meta_id TEXT, attempts INTEGER,  -- of an envelope
  reason TEXT, detail TEXT,               -- of the verdict; NULL: it may reach a consumer
  record_id BLOB, record BLOB,            -- its dead-letter record, and the id that stands in it
  content BLOB NOT NULL                   -- the body
);

CREATE TABLE published (                  -- the highest version of each writer that publishes once
  app_id TEXT PRIMARY KEY,                -- who publishes: a query, or `txnAppId`
  version INTEGER NOT NULL,               -- what it published last
  at_ms INTEGER NOT NULL,                 -- Unix ms
  "rows" INTEGER NOT NULL,                -- of that version
  owner TEXT,                             -- a user; NULL: the first who writes under it
  used_ms INTEGER NOT NULL,               -- steady ms: when it was published or repeated last
  single_use INTEGER NOT NULL             -- 1: of one publish only, so that it may be forgotten
                                          -- earlier
) WITHOUT ROWID;

CREATE TABLE reader (                     -- how far those are that follow the history
  name TEXT PRIMARY KEY,                  -- its name
  "offset" INTEGER NOT NULL,              -- done up to it
  at_ms INTEGER NOT NULL,                 -- Unix ms: when it said so
  owner TEXT                              -- who named it first; NULL: the next user who reports
) WITHOUT ROWID;

CREATE TABLE clock_step (                 -- the wall clock was set; the first row: as it was found
  number INTEGER PRIMARY KEY,             -- in the order of the steps
  from_offset INTEGER NOT NULL,           -- what is settled from here on
  at_ms INTEGER NOT NULL,                 -- steady ms
  step_ms INTEGER NOT NULL                -- the wall clock less the steady scale, from then on
);
