-- What the writer does in each batch, and what it loads after it.

-- part: plain
-- The columns that every message has, in the order of model.Message.
seq, token, queue_id, position, state, ttl_s, deadline_ms, published_at,
  first_dispatched_at, last_dispatched_at, deliveries, charged, size, crc, publisher, consumer

-- part: enveloped
-- With what is indexed of an envelope.
{plain},
  urn, trace_id, meta_id, attempts

-- part: message
-- All columns of a message that is alive, in that order.
{enveloped}, source_seq, source_queue_id, source_reason

-- part: settled
-- What the history takes over from it: all but the state.
seq, token, queue_id, position, ttl_s,
  deadline_ms, published_at, first_dispatched_at, last_dispatched_at, deliveries, charged, size,
  crc, publisher, consumer, urn, trace_id, meta_id, attempts, source_seq, source_queue_id,
  source_reason

-- name: insert_ready
-- New messages that never expire and were not dispatched in their batch.  What they have in common
-- is not bound: 8 parameters a row instead of 16 take 0.8 instead of 2.3 µs.
-- rows: seq, token, queue_id, position, published_at, size, crc, publisher
INSERT INTO message ({plain})
VALUES {rows:(?,?,?,?,0,NULL,NULL,?,NULL,NULL,0,0,?,?,?,NULL)};

-- name: insert_sent
-- The same, of those that were dispatched once in their batch.
-- rows: seq, token, queue_id, position, published_at, first_dispatched_at, last_dispatched_at, size,
--   crc, publisher, consumer
INSERT INTO message ({plain})
VALUES {rows:(?,?,?,?,1,NULL,NULL,?,?,?,1,0,?,?,?,?)};

-- name: insert_ready_ttl
-- The same, of those that expire.
-- rows: seq, token, queue_id, position, ttl_s, deadline_ms, published_at, size, crc, publisher
INSERT INTO message ({plain})
VALUES {rows:(?,?,?,?,0,?,?,?,NULL,NULL,0,0,?,?,?,NULL)};

-- name: insert_ready_enveloped
-- The same, of envelopes; the record's columns stay NULL.
-- rows: those of insert_ready_ttl; urn, trace_id, meta_id, attempts
INSERT INTO message ({enveloped})
VALUES {rows:(?,?,?,?,0,?,?,?,NULL,NULL,0,0,?,?,?,NULL,?,?,?,?)};

-- name: insert_plain
-- New messages that were dispatched, or more, in their batch; the envelope's and the record's
-- columns stay NULL.
-- rows: seq to consumer
INSERT INTO message ({plain})
VALUES {rows:(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)};

-- name: insert_enveloped
-- The same, of envelopes.
-- rows: seq to attempts
INSERT INTO message ({enveloped})
VALUES {rows:(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)};

-- name: insert_whole
-- New messages with all columns.
-- rows: seq to source_reason
INSERT INTO message ({message})
VALUES {rows:(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)};

-- name: insert_body
-- rows: seq, content
INSERT INTO body (seq, content) VALUES {rows:(?,?)};

-- name: dispatch
-- Messages on disk that were dispatched in this batch.
-- rows: seq, consumer, when (Unix ms)
UPDATE message SET state = 1, deliveries = deliveries + 1, consumer = given.column2,
  last_dispatched_at = given.column3,
  first_dispatched_at = coalesce(first_dispatched_at, given.column3)
FROM (VALUES {rows:(?,?,?)}) AS given WHERE message.seq = given.column1;

-- name: change
-- Messages on disk that returned, were requeued or forwarded.
-- rows: seq, queue_id, position, state, ttl_s, deadline_ms, first_dispatched_at,
--   last_dispatched_at, deliveries, charged, consumer
UPDATE message SET queue_id = given.column2, position = given.column3, state = given.column4,
  ttl_s = given.column5, deadline_ms = given.column6, first_dispatched_at = given.column7,
  last_dispatched_at = given.column8, deliveries = given.column9, charged = given.column10,
  consumer = given.column11
FROM (VALUES {rows:(?,?,?,?,?,?,?,?,?,?,?)}) AS given WHERE message.seq = given.column1;

-- name: settle
-- Rows of settled messages, in order of seq; SQLite numbers the offset, behind the newest row.
-- before the rows: outcome, reason, now (Unix ms).  rows: seq
INSERT INTO history (outcome, reason, settled_at, {settled})
SELECT ?, ?, ?, {settled} FROM message WHERE seq IN ({rows:?}) ORDER BY seq;

-- name: settle_dispatched
-- The same, of messages that were on disk before and both dispatched and settled in this batch:
-- their rows need not be written in between, which costs 1 µs each.
-- before the rows: outcome, reason, now (Unix ms).  rows: seq, consumer, dispatched (Unix ms)
INSERT INTO history (outcome, reason, settled_at, {settled})
SELECT ?, ?, ?, seq, token, queue_id, position, ttl_s, deadline_ms, published_at,
  coalesce(first_dispatched_at, given.column3), given.column3, deliveries + 1, charged, size, crc,
  publisher, given.column2, urn, trace_id, meta_id, attempts, source_seq, source_queue_id,
  source_reason
FROM (VALUES {rows:(?,?,?)}) AS given CROSS JOIN message ON message.seq = given.column1
ORDER BY seq;

-- name: remove
-- rows: seq
DELETE FROM message WHERE seq IN ({rows:?});

-- name: insert_event
-- rows: seq, at_ms, kind, detail
INSERT INTO event (seq, at_ms, kind, detail) VALUES {rows:(?,?,?,?)};

-- name: insert_receipt
-- rows: queue_id, key, seq, at_ms
INSERT INTO receipt (queue_id, key, seq, at_ms) VALUES {rows:(?,?,?,?)};

-- name: insert_queue
-- parameters: queue_id, name, created_at, created_by
INSERT INTO queue (queue_id, name, created_at, created_by) VALUES (?, ?, ?, ?);

-- name: update_queue
-- How much is alive in each queue that a batch touched.
-- rows: queue_id, live_count, live_bytes
UPDATE queue SET live_count = given.column2, live_bytes = given.column3
FROM (VALUES {rows:(?,?,?)}) AS given WHERE queue.queue_id = given.column1;

-- name: configure_queue
-- parameters: queue_settings.COLUMNS, settings (JSON), created_by, queue_id
UPDATE queue SET on_expire = ?, max_deliveries = ?, ack_timeout_s = ?, max_messages = ?,
  max_bytes = ?, payload_policy = ?, settings = ?, created_by = ? WHERE queue_id = ?;

-- name: insert_client
-- rows: client, kind, address, opened_at
INSERT INTO client (client, kind, address, opened_at) VALUES {rows:(?,?,?,?)};

-- name: close_client
-- parameters: closed_at, framing, revision, reason, client
UPDATE client SET closed_at = ?, framing = ?, revision = ?, reason = ? WHERE client = ?;

-- name: set_counter
-- parameters: name, value
INSERT INTO counter (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: add_counter
-- parameters: name, number to add
INSERT INTO counter (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = value + excluded.value;

-- name: next_ready
-- The next ready messages of a queue, in order, without bodies.
-- parameters: queue_id; after (position, exclusive); limit
-- index: message_place
SELECT {message}
FROM message WHERE queue_id = ? AND position > ? AND state = 0
ORDER BY position LIMIT ?;

-- name: page
-- Messages of a queue that are alive, in order.
-- parameters: of (queue_id); after (position, exclusive); upto (position, inclusive); limit
-- index: message_place
-- index: message_held
SELECT {message}
FROM message WHERE queue_id = :of AND position > :after AND position <= :upto AND state = 0
UNION ALL
SELECT {message}
FROM message WHERE queue_id = :of AND position > :after AND position <= :upto AND state = 1
ORDER BY position LIMIT :limit;

-- name: ready_page
-- The same, of those that are ready.
-- parameters: of (queue_id); after (position, exclusive); upto (position, inclusive); limit
-- index: message_place
SELECT {message}
FROM message WHERE queue_id = :of AND position > :after AND position <= :upto AND state = 0
ORDER BY position LIMIT :limit;

-- name: claimed_page
-- The same, of those that a subscription holds, by claim.
-- parameters: of (subscription_id); after (claim, exclusive); upto (claim, inclusive); limit
-- index: PRIMARY KEY
SELECT {message}
FROM claim CROSS JOIN message USING (seq)
WHERE subscription_id = :of AND claim > :after AND claim <= :upto
ORDER BY claim LIMIT :limit;

-- name: by_seq
-- rows: seq
SELECT {message}
FROM message WHERE seq IN ({rows:?});

-- name: settled_by_seq
-- Settled messages in the columns of one that is alive.  The state is the outcome, or 0 (ready)
-- where it was restored: its event then has the id of a younger message.
-- rows: seq
-- index: history_seq
SELECT seq, token, queue_id, position,
  CASE WHEN EXISTS (SELECT 1 FROM event WHERE event.seq = history.seq AND kind = 'restore'
    AND detail > printf('%016x%016x', history.seq, token)) THEN 0 ELSE outcome END,
  ttl_s, deadline_ms, published_at, first_dispatched_at, last_dispatched_at, deliveries, charged,
  size, crc, publisher, consumer, urn, trace_id, meta_id, attempts, source_seq, source_queue_id,
  source_reason
FROM history WHERE seq IN ({rows:?});

-- name: due
-- Ready messages whose deadline has passed, the soonest first.
-- parameters: now (steady ms); limit
-- index: message_deadline
SELECT {message}
FROM message WHERE state = 0 AND deadline_ms IS NOT NULL AND deadline_ms <= ?
ORDER BY deadline_ms LIMIT ?;

-- name: next_deadline
-- The soonest deadline of a ready message (steady ms) after a moment.
-- parameters: after (steady ms, exclusive)
-- index: message_deadline
SELECT min(deadline_ms) FROM message
WHERE state = 0 AND deadline_ms IS NOT NULL AND deadline_ms > ?;

-- name: bodies
-- rows: seq
SELECT seq, content FROM body WHERE seq IN ({rows:?});

-- name: checksums
-- rows: seq
SELECT seq, crc FROM message WHERE seq IN ({rows:?});

-- name: settled_checksums
-- rows: seq
-- index: history_seq
SELECT seq, crc FROM history WHERE seq IN ({rows:?});

-- name: records
-- Records about messages, alive: what a client wrote before the message itself was dead, in the
-- queue where its record belongs or in NAME.dlq; in any other only what was written by who had the
-- message.  The newest few of each, because anybody can write any number.
-- rows: source_seq, queue_id, queue_id, publisher
-- columns: source_seq, seq, token, size
-- index: message_source
SELECT record.source_seq, record.seq, record.token, record.size
FROM (VALUES {rows:(?,?,?,?)}) AS given CROSS JOIN message AS record ON record.seq IN (
  SELECT seq FROM (
    SELECT newest.seq FROM message AS newest
    WHERE newest.source_seq = given.column1 AND newest.queue_id = given.column2
    ORDER BY newest.seq DESC LIMIT 8)
  UNION
  SELECT seq FROM (
    SELECT newest.seq FROM message AS newest
    WHERE newest.source_seq = given.column1 AND newest.queue_id = given.column3
    ORDER BY newest.seq DESC LIMIT 8)
  UNION
  SELECT seq FROM (
    SELECT newest.seq FROM message AS newest
    WHERE newest.source_seq = given.column1 AND newest.publisher = given.column4
    ORDER BY newest.seq DESC LIMIT 8));

-- name: release_held
-- At start: what connections held is ready again, in its old place; claimed ones stay dispatched.
-- index: message_held
UPDATE message SET state = 0
WHERE state = 1 AND NOT EXISTS (SELECT 1 FROM claim WHERE claim.seq = message.seq);

-- name: queues
SELECT queue_id, name, created_at, on_expire, max_deliveries, ack_timeout_s, max_messages,
  max_bytes, payload_policy, settings, live_count, live_bytes, created_by FROM queue;

-- name: forget_queues
-- At start: removed queues that neither the history nor a key needs any more.
-- index: history_place USING PRIMARY KEY
DELETE FROM queue WHERE settings = '{"removed": true}'
  AND NOT EXISTS (
    SELECT 1 FROM history_place WHERE history_place.queue_id = queue.queue_id AND block IN (
      WITH RECURSIVE each (block) AS (
        SELECT min(block) FROM history_place
        UNION ALL
        SELECT (SELECT block FROM history_place WHERE block > each.block ORDER BY block LIMIT 1)
        FROM each WHERE each.block IS NOT NULL
      )
      SELECT block FROM each WHERE block IS NOT NULL
    ))
  AND queue_id NOT IN (
    SELECT queue_id FROM history NOT INDEXED
    WHERE "offset" > coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0))
  AND queue_id NOT IN (SELECT queue_id FROM receipt)
  AND queue_id NOT IN (SELECT queue_id FROM stage_part)
  AND queue_id NOT IN (SELECT queue_id FROM subscription);

-- name: receipt_before
-- The newest key of those that are too many; no row: all count.
-- parameters: how many count
SELECT n FROM receipt ORDER BY n DESC LIMIT 1 OFFSET ?;

-- name: receipts
-- Keys that still count, oldest first.
-- parameters: after (n); added after (steady ms); limit
-- index: INTEGER PRIMARY KEY
SELECT n, queue_id, key, seq, at_ms FROM receipt WHERE n > ? AND at_ms > ? ORDER BY n LIMIT ?;

-- name: counters
SELECT name, value FROM counter WHERE name <> 'next_number'
UNION ALL SELECT 'next_number', next_number FROM line;

-- name: close_clients
-- At start: connections that the last stop left open.
-- parameters: closed_at (Unix ms), reason
-- index: client_closed
UPDATE client SET closed_at = ?, reason = ? WHERE closed_at IS NULL AND client > 0;
