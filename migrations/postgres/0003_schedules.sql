-- Schedules, which publish messages at the ticks of cron expressions, and their runs; losses.

CREATE TABLE schedule (                   -- what schedules publish, and when
  schedule_id BIGINT PRIMARY KEY,         -- its number
  name TEXT COLLATE "C" NOT NULL UNIQUE,  -- its name
  cron TEXT NOT NULL,                     -- cron expression of 5 fields, or 6 with seconds first
  timezone TEXT NOT NULL,                 -- in which it is read, such as Europe/Berlin
  queue TEXT NOT NULL,                    -- name of the queue that gets the messages
  content BYTEA NOT NULL,                 -- of the messages, with placeholders
  encoding TEXT NOT NULL                  -- in which the content was given
    CHECK (encoding IN ('utf-8', 'base64')),
  ttl_s BIGINT,                           -- seconds; NULL: the queue's default
  priority BIGINT NOT NULL,               -- 0 is first
  group_name TEXT,                        -- group of the messages
  is_enabled BIGINT NOT NULL,             -- 0: paused
  missed TEXT NOT NULL                    -- what happens to missed ticks
    CHECK (missed IN ('skip', 'once', 'all')),
  missed_max BIGINT NOT NULL,             -- how many of them run if all do
  created_at BIGINT NOT NULL,             -- Unix ms
  created_by TEXT NOT NULL,               -- who created it
  changed_at BIGINT NOT NULL,             -- Unix ms
  changed_by TEXT NOT NULL,               -- who changed it last
  seen_upto BIGINT NOT NULL               -- Unix ms by the raw wall clock: ticks up to it are decided
);

CREATE TABLE schedule_run (               -- what happened to ticks of schedules
  schedule_id BIGINT NOT NULL,            -- of `schedule`
  tick_ms BIGINT NOT NULL,                -- Unix ms of the tick; of a requested run, when that was
  at_ms BIGINT NOT NULL,                  -- Unix ms when it was decided
  outcome TEXT NOT NULL                   -- what happened
    CHECK (outcome IN ('published', 'failed', 'skipped')),
  detail TEXT NOT NULL,                   -- why
  message_id TEXT,                        -- of the message that was published
  run_by TEXT,                            -- who requested it; NULL: the schedule
  PRIMARY KEY (schedule_id, tick_ms)
);
CREATE INDEX schedule_run_failed ON schedule_run (at_ms) WHERE outcome = 'failed';

-- dead letters by reason and URN, and expired messages, JSON; NULL: none
ALTER TABLE rollup ADD COLUMN losses TEXT;
