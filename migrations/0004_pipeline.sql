-- The pipeline: what Spark queries hold and have staged, how far readers are, and who we are.
-- Times: *_at are Unix milliseconds.

CREATE TABLE meta (                       -- one text each
  name TEXT PRIMARY KEY,                  -- history_id: 32 hex digits, made at the first start
  value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE subscription (               -- holds messages of one queue, without a connection
  subscription_id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  queue_id INTEGER NOT NULL,
  next_claim INTEGER NOT NULL,            -- claims are numbered from 1; below it all are given
  acked_upto INTEGER NOT NULL,            -- the last claim that was acknowledged or released
  created_at INTEGER NOT NULL
);

-- A message that is claimed is dispatched (state 1).  Its row goes when it settles or is released;
-- the number is not given again.
CREATE TABLE claim (
  subscription_id INTEGER NOT NULL,
  claim INTEGER NOT NULL,                 -- its number
  seq INTEGER NOT NULL,
  claimed_at INTEGER NOT NULL,
  PRIMARY KEY (subscription_id, claim)
) WITHOUT ROWID;
CREATE UNIQUE INDEX claim_seq ON claim (seq);

CREATE TABLE stage (                      -- rows that wait for their publish, by token
  stage_id INTEGER PRIMARY KEY,
  token TEXT UNIQUE,                      -- NULL: published or dropped, its rows are being removed
  created_at INTEGER NOT NULL,
  until_ms INTEGER NOT NULL,              -- steady ms: dropped then
  "rows" INTEGER NOT NULL,
  bytes INTEGER NOT NULL,                 -- of the bodies
  is_whole INTEGER NOT NULL               -- 1: its last row is there
);

CREATE TABLE stage_part (                 -- what is staged for each queue
  stage_id INTEGER NOT NULL,
  queue_id INTEGER NOT NULL,
  "rows" INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  bad_rows INTEGER NOT NULL,              -- of them: dead at once when they are published
  bad_bytes INTEGER NOT NULL,
  least_ttl_s INTEGER,                    -- NULL: none expires
  policy TEXT NOT NULL,                   -- by which they were judged; empty: the queue judges not
  PRIMARY KEY (stage_id, queue_id)
) WITHOUT ROWID;

CREATE TABLE stage_row (
  row_id INTEGER PRIMARY KEY,             -- stage_id << 17 | its place among the rows of the token
  queue_id INTEGER NOT NULL,
  ttl_s INTEGER,                          -- from the publish on; NULL: never expires
  token INTEGER NOT NULL,                 -- 63 random bits, of the message
  urn TEXT, trace_id TEXT, meta_id TEXT, attempts INTEGER,
  reason TEXT, detail TEXT,               -- of the verdict; NULL: it may reach a consumer
  record_id BLOB, record BLOB,            -- its dead-letter record, and the id that stands in it
  content BLOB NOT NULL
);

CREATE TABLE published (                  -- the highest version of each writer that publishes once
  app_id TEXT PRIMARY KEY,
  version INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,                 -- Unix ms
  "rows" INTEGER NOT NULL                 -- of that version
) WITHOUT ROWID;

CREATE TABLE reader (                     -- how far those are that follow the history
  name TEXT PRIMARY KEY,
  "offset" INTEGER NOT NULL,              -- done up to it
  at_ms INTEGER NOT NULL                  -- Unix ms: when it said so
) WITHOUT ROWID;

CREATE TABLE clock_step (                 -- the wall clock was set; the first row: as it was found
  number INTEGER PRIMARY KEY,
  from_offset INTEGER NOT NULL,           -- what is settled from here on
  at_ms INTEGER NOT NULL,                 -- steady ms
  step_ms INTEGER NOT NULL                -- the wall clock less the steady scale, from then on
);
