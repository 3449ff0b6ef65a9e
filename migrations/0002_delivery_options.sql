-- Scheduled messages, priorities, groups, unique keys and retries.

ALTER TABLE queue ADD COLUMN scheduled_count INTEGER NOT NULL DEFAULT 0;

-- What indexes and their conditions contain comes first: SQLite reads a row up to the last column
-- that it needs, and each deletion needs them.
CREATE TABLE message_with_options (       -- live messages
  seq INTEGER PRIMARY KEY,                -- arrival number, never reused
  token INTEGER NOT NULL,                 -- 63 random bits; wire id = hex(seq) || hex(token)
  queue_id INTEGER NOT NULL,              -- of `queue`
  position INTEGER NOT NULL,              -- order in the queue: (priority - 128) << 48 | number
  state INTEGER NOT NULL                  -- 0 ready, 1 dispatched, 6 scheduled, 7 blocked
    CONSTRAINT message_state_check  -- with IN, a table would be built for each row
    CHECK (state BETWEEN 0 AND 1 OR state BETWEEN 6 AND 7),
  deadline_ms INTEGER,                    -- steady ms; NULL: never expires
  source_seq INTEGER,                     -- dead-letter record: the message it is about
  source_queue_id INTEGER,                -- dead-letter record: where that one died
  head_since INTEGER,                     -- Unix ms: first dispatch of the head of its group; NULL:
                                          -- it is not the head
  group_name TEXT,                        -- of which at most one message is in flight
  unique_key TEXT,                        -- under which the queue holds no other live message
  ttl_s INTEGER,                          -- seconds, as published; NULL: never expires
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
  source_reason TEXT,                     -- dead-letter record: why
  ready_at INTEGER,                       -- Unix ms when it became ready after it was scheduled;
                                          -- NULL: when it was published
  due_ms INTEGER,                         -- steady ms when a scheduled message becomes ready; with
                                          -- deliver_at, when that was expected
  deliver_at INTEGER,                     -- Unix ms: the date that was given for it
  retries INTEGER,                        -- failed attempts that workers reported; NULL: none
  failed_attempt INTEGER,                 -- the last attempt that they named
  priority INTEGER                        -- dead-letter record: that of the message it is about
);
INSERT INTO message_with_options (seq, token, queue_id, position, state, ttl_s, deadline_ms,
  published_at, first_dispatched_at, last_dispatched_at, deliveries, charged, size, crc, publisher,
  consumer, urn, trace_id, meta_id, attempts, source_seq, source_queue_id, source_reason)
SELECT seq, token, queue_id, position, state, ttl_s, deadline_ms, published_at,
  first_dispatched_at, last_dispatched_at, deliveries, charged, size, crc, publisher, consumer, urn,
  trace_id, meta_id, attempts, source_seq, source_queue_id, source_reason FROM message;
DROP TABLE message;
ALTER TABLE message_with_options RENAME TO message;

CREATE INDEX message_deadline ON message (deadline_ms)
WHERE deadline_ms IS NOT NULL AND state IN (0, 7);
-- Each live message is in one of three indexes.  Most are dispatched in the batch of their publish:
-- they cost one entry, and its page, instead of two.
CREATE INDEX message_place ON message (queue_id, position) WHERE state = 0;
CREATE INDEX message_held ON message (queue_id, position) WHERE state = 1;
CREATE INDEX message_scheduled ON message (queue_id, position) WHERE state = 6;
CREATE INDEX message_due ON message (due_ms) WHERE state = 6 AND deliver_at IS NULL;
CREATE INDEX message_date ON message (deliver_at) WHERE state = 6 AND deliver_at IS NOT NULL;
-- Live messages that these do not have in the order of their numbers: those with a priority, and
-- those requeued, moved, forwarded or restored.
CREATE INDEX message_moved ON message (queue_id) WHERE position <> seq;
-- When a message dies, the record that a worker wrote about it is looked up.
CREATE INDEX message_source ON message (source_seq) WHERE source_seq IS NOT NULL;
CREATE INDEX message_blocked ON message (queue_id, position) WHERE state = 7;
CREATE INDEX message_group ON message (queue_id, group_name, position)
WHERE group_name IS NOT NULL AND source_queue_id IS NULL AND state IN (0, 7);
CREATE INDEX message_head ON message (queue_id, group_name) WHERE head_since IS NOT NULL;
CREATE INDEX message_unique ON message (queue_id, unique_key)
WHERE unique_key IS NOT NULL AND source_queue_id IS NULL;

ALTER TABLE stage_row ADD COLUMN group_name TEXT;

ALTER TABLE history ADD COLUMN ready_at INTEGER;
ALTER TABLE history ADD COLUMN due_ms INTEGER;
ALTER TABLE history ADD COLUMN deliver_at INTEGER;
ALTER TABLE history ADD COLUMN retries INTEGER;
ALTER TABLE history ADD COLUMN priority INTEGER;
ALTER TABLE history ADD COLUMN group_name TEXT;
ALTER TABLE history ADD COLUMN unique_key TEXT;
-- When its data was erased (Unix ms).
ALTER TABLE history ADD COLUMN erased_at INTEGER;

-- What was published to NAME.retry with a time to live is delivered in NAME after that time.  Until
-- now it waited there, and expired; from now on, it is scheduled in NAME.
CREATE TEMP TABLE retry_queue AS
SELECT queue_id, substr(name, 1, length(name) - 6) AS home_name, created_at, created_by
FROM queue
WHERE name GLOB '?*.retry' AND on_expire IS NULL AND EXISTS (SELECT 1 FROM message
  WHERE message.queue_id = queue.queue_id AND state = 0 AND deadline_ms IS NOT NULL);
INSERT INTO queue (queue_id, name, created_at, created_by)
SELECT row_number() OVER (ORDER BY queue_id) + (SELECT max(number) FROM (
    SELECT max(queue_id) AS number FROM queue
    UNION ALL SELECT value - 1 FROM counter WHERE name = 'next_queue_id'
  ) AS used), home_name, created_at, created_by
FROM retry_queue WHERE home_name NOT IN (SELECT name FROM queue);
UPDATE queue SET settings = '{}'
WHERE settings = '{"removed": true}' AND name IN (SELECT home_name FROM retry_queue);
UPDATE message SET state = 6, queue_id = home.queue_id, due_ms = message.deadline_ms,
  ttl_s = home.ttl_s, deadline_ms = message.deadline_ms + home.ttl_s * 1000
FROM retry_queue AS retry JOIN (
  SELECT queue_id, name, nullif(json_extract(settings, '$.default_ttl_s'), 0) AS ttl_s FROM queue
) AS home ON home.name = retry.home_name
WHERE message.queue_id = retry.queue_id AND state = 0 AND message.deadline_ms IS NOT NULL;
UPDATE queue SET live_count = coalesce(counted.messages, 0),
  live_bytes = coalesce(counted.bytes, 0), scheduled_count = coalesce(counted.scheduled, 0)
FROM queue AS same LEFT JOIN (
  SELECT queue_id, count(*) AS messages, sum(size) AS bytes,
    count(*) FILTER (WHERE state = 6) AS scheduled
  FROM message GROUP BY queue_id
) AS counted ON counted.queue_id = same.queue_id
WHERE same.queue_id = queue.queue_id AND (queue.queue_id IN (SELECT queue_id FROM retry_queue)
  OR queue.name IN (SELECT home_name FROM retry_queue));
DROP TABLE retry_queue;
-- The next start knows the default TTL of the broker, for those whose queue has no own.
INSERT INTO counter (name, value)
SELECT 'without_default_ttl', 1 WHERE EXISTS (SELECT 1 FROM message WHERE state = 6);
