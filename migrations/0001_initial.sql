-- The first schema.  Times: *_at are Unix milliseconds; deadline_ms is on the steady scale
-- (wall clock less the jumps seen).  Numbers of messages come from one line, `next_number`.

CREATE TABLE queue (
  queue_id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,              -- 1 to 255 bytes of UTF-8 without control characters
  created_at INTEGER NOT NULL,            -- Unix ms
  payload_policy TEXT,                    -- these six: NULL is the broker's default
  on_expire TEXT,                         -- history, dead_letter or forward:<queue>
  max_deliveries INTEGER,                 -- charged deliveries; 0: no limit
  ack_timeout_s INTEGER,                  -- seconds; 0: none
  max_messages INTEGER,                   -- messages alive; 0: no limit
  max_bytes INTEGER,                      -- bytes of bodies alive; 0: no limit
  settings TEXT NOT NULL DEFAULT '{}',    -- the rare ones, a JSON object
  live_count INTEGER NOT NULL DEFAULT 0,  -- messages alive
  live_bytes INTEGER NOT NULL DEFAULT 0   -- bytes of their bodies
);

CREATE TABLE message (                    -- alive only
  seq INTEGER PRIMARY KEY,                -- arrival number, never reused
  token INTEGER NOT NULL,                 -- 63 random bits; wire id = hex(seq) || hex(token)
  queue_id INTEGER NOT NULL,
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
CREATE INDEX message_place ON message (queue_id, position);
CREATE INDEX message_deadline ON message (deadline_ms) WHERE state = 0 AND deadline_ms IS NOT NULL;
CREATE INDEX message_held ON message (seq) WHERE state = 1;

CREATE TABLE body (
  seq INTEGER PRIMARY KEY,
  content BLOB NOT NULL                   -- as sent; stays until retention takes the history row
);

CREATE TABLE history (                    -- settled: one row each
  "offset" INTEGER PRIMARY KEY AUTOINCREMENT,  -- gapless, ever increasing
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
CREATE INDEX history_seq ON history (seq);
CREATE INDEX history_deleted ON history ("offset") WHERE outcome = 5;

CREATE TABLE event (                      -- unusual turns of a life
  event_id INTEGER PRIMARY KEY,
  seq INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,                 -- Unix ms
  kind TEXT NOT NULL,                     -- requeue, return, forward, redrive, …
  detail TEXT
);
CREATE INDEX event_seq ON event (seq);

CREATE TABLE client (                     -- one row a connection
  client INTEGER PRIMARY KEY,             -- its number; 0 is the admin, pages and HTTP API
  kind TEXT NOT NULL,                     -- tcp, unix, admin, cli
  address TEXT NOT NULL,
  opened_at INTEGER NOT NULL,             -- Unix ms
  closed_at INTEGER,                      -- Unix ms; NULL: open, or the broker ended first
  framing TEXT, revision TEXT,            -- seen when it closed
  reason TEXT                             -- why it closed
);
INSERT INTO client (client, kind, address, opened_at) VALUES (0, 'admin', 'admin', 0);
CREATE INDEX client_closed ON client (closed_at);

CREATE TABLE receipt (                    -- keys of confirmed publishes, oldest first
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  queue_id INTEGER NOT NULL,
  key BLOB NOT NULL,                      -- 1 to 64 bytes
  seq INTEGER NOT NULL,                   -- the message stored under it
  at_ms INTEGER NOT NULL                  -- steady ms
);

CREATE TABLE counter (                    -- one number each
  name TEXT PRIMARY KEY,
  value INTEGER NOT NULL
) WITHOUT ROWID;
