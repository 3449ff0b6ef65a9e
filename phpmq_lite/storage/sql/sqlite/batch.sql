-- name: insert_run
-- New messages with consecutive numbers that differ only in queue and content, at their original
-- positions, dispatched at most once.  Binding 4 values per row instead of 11 saves 0.5 µs.
-- before the rows: seq of the first row, state, ttl_s, deadline_ms, published_at, dispatched (Unix
--   ms), publisher, consumer.  rows: queue_id, token, size, crc
INSERT INTO message (seq, position, state, deliveries, ttl_s, deadline_ms, published_at,
  first_dispatched_at, last_dispatched_at, charged, publisher, consumer, queue_id, token, size, crc)
VALUES {rows:(?1 + {n}, ?1 + {n}, ?2, ?2, ?3, ?4, ?5, ?6, ?6, 0, ?7, ?8, ?, ?, ?, ?)};

-- name: insert_enveloped
-- Other new messages that are not dead letters; dead-letter columns stay NULL.
-- rows: seq to attempts
INSERT INTO message ({envelope_columns})
VALUES {rows:(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)};

-- name: insert_with_source
-- New dead letters, with all columns.
-- rows: seq to source_reason
INSERT INTO message ({all_columns})
VALUES {rows:(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)};

-- name: insert_bodies
-- Contents of messages with consecutive numbers.
-- before the rows: seq of the first row.  rows: content
INSERT INTO body (seq, content) VALUES {rows:(?1 + {n}, ?)};

-- name: dispatch_messages
-- Stored messages that this batch dispatched.
-- rows: seq, consumer, dispatched (Unix ms)
UPDATE message SET state = 1, deliveries = deliveries + 1, consumer = given.column2,
  last_dispatched_at = given.column3,
  first_dispatched_at = coalesce(first_dispatched_at, given.column3)
FROM (VALUES {rows:(?,?,?)}) AS given WHERE message.seq = given.column1;

-- name: update_messages
-- Stored messages that this batch returned, requeued or forwarded.
-- rows: seq, queue_id, position, state, ttl_s, deadline_ms, first_dispatched_at,
--   last_dispatched_at, deliveries, charged, consumer
UPDATE message SET queue_id = given.column2, position = given.column3, state = given.column4,
  ttl_s = given.column5, deadline_ms = given.column6, first_dispatched_at = given.column7,
  last_dispatched_at = given.column8, deliveries = given.column9, charged = given.column10,
  consumer = given.column11
FROM (VALUES {rows:(?,?,?,?,?,?,?,?,?,?,?)}) AS given WHERE message.seq = given.column1;

-- name: settle_messages
-- History rows for settled messages in seq order; SQLite assigns the next offsets.
-- before the rows: outcome, reason, now (Unix ms).  rows: seq
INSERT INTO history (outcome, reason, settled_at, {history_columns})
SELECT ?, ?, ?, {history_columns} FROM message WHERE seq IN ({rows:?}) ORDER BY seq;

-- name: settle_run
-- Like settle_messages, for messages with consecutive numbers.
-- parameters: outcome, reason, now (Unix ms), first and last seq
-- index: INTEGER PRIMARY KEY
INSERT INTO history (outcome, reason, settled_at, {history_columns})
SELECT ?, ?, ?, {history_columns} FROM message WHERE seq BETWEEN ? AND ? ORDER BY seq;

-- name: settle_dispatched
-- Like settle_messages, for stored messages that this batch both dispatched and settled.  Not
-- updating their live rows in between saves 1 µs per message.
-- before the rows: outcome, reason, now (Unix ms).  rows: seq, consumer, dispatched (Unix ms)
INSERT INTO history (outcome, reason, settled_at, {history_columns})
SELECT ?, ?, ?, seq, token, queue_id, position, ttl_s, deadline_ms, published_at,
  coalesce(first_dispatched_at, given.column3), given.column3, deliveries + 1, charged, size, crc,
  publisher, given.column2, urn, trace_id, meta_id, attempts, source_seq, source_queue_id,
  source_reason
FROM (VALUES {rows:(?,?,?)}) AS given CROSS JOIN message ON message.seq = given.column1
ORDER BY seq;

-- name: settle_dispatched_run
-- Like settle_dispatched, for messages with consecutive numbers dispatched to one consumer.
-- parameters: consumer, dispatched (Unix ms), outcome, reason, now (Unix ms), first and last seq
-- index: INTEGER PRIMARY KEY
INSERT INTO history (outcome, reason, settled_at, {history_columns})
SELECT ?3, ?4, ?5, seq, token, queue_id, position, ttl_s, deadline_ms, published_at,
  coalesce(first_dispatched_at, ?2), ?2, deliveries + 1, charged, size, crc, publisher, ?1, urn,
  trace_id, meta_id, attempts, source_seq, source_queue_id, source_reason
FROM message WHERE seq BETWEEN ?6 AND ?7 ORDER BY seq;

-- name: insert_event
-- rows: seq, at_ms, kind, detail
INSERT INTO event_entry (seq, at_ms, kind, detail) VALUES {rows:(?,?,?,?)};

-- name: insert_receipt
-- rows: n, queue_id, seq, at_ms, key_bytes, keys
INSERT INTO receipt (n, queue_id, seq, at_ms, key_bytes, keys) VALUES {rows:(?,?,?,?,?,?)};

-- name: update_queue
-- Updates the number and size of live messages in queues that a batch changed.
-- rows: queue_id, live_count, live_bytes
UPDATE queue SET live_count = given.column2, live_bytes = given.column3
FROM (VALUES {rows:(?,?,?)}) AS given WHERE queue.queue_id = given.column1;

-- name: insert_client
-- rows: client, kind, address, opened_at
INSERT INTO client (client, kind, address, opened_at) VALUES {rows:(?,?,?,?)};

-- name: set_counter
-- parameters: name, value
INSERT INTO counter (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: add_counter
-- parameters: name, number to add
INSERT INTO counter (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = value + excluded.value;

-- name: client_records
-- Live dead letters that clients published about messages that were not dead yet: by any client in
-- their dead-letter queue or NAME.dlq, in other queues only by the client that held the message.
-- Reads only the newest few for each message, because clients may publish any number of them.
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

-- name: delete_forgotten_queues
-- At startup, deletes removed queues to which neither the history nor a receipt refers.
-- index: history_run USING PRIMARY KEY
DELETE FROM queue WHERE settings = '{"removed": true}'
  AND NOT EXISTS (
    SELECT 1 FROM history_run CROSS JOIN history
      ON history."offset" >= first_offset AND history."offset" < first_offset + length
    WHERE history_run.queue_id = queue.queue_id AND block IN (
      WITH RECURSIVE each (block) AS (
        SELECT min(block) FROM history_run
        UNION ALL
        SELECT (SELECT block FROM history_run WHERE block > each.block ORDER BY block LIMIT 1)
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

-- name: overwrite_body
-- Overwrites a secret before its row is deleted, because SQLite does not clear deleted bytes.
-- parameters: seq
-- index: INTEGER PRIMARY KEY
UPDATE body SET content = zeroblob(length(content)) WHERE seq = :seq;

-- name: insert_staged_rows
-- rows: row_id, queue_id, ttl_s, token, urn, trace_id, meta_id, attempts, reason, detail,
--   record_id, record, content
INSERT INTO stage_row (row_id, queue_id, ttl_s, token, urn, trace_id, meta_id, attempts, reason,
  detail, record_id, record, content)
VALUES {rows:(?,?,?,?,?,?,?,?,?,?,?,?,?)};

-- name: quarantined_rows
-- Staged rows that are invalid and will be quarantined.
-- parameters: spans
-- columns: row_id, queue_id, ttl_s, urn, trace_id, meta_id, attempts, reason, detail, record_id,
--   record, content
-- index: INTEGER PRIMARY KEY
SELECT row_id, queue_id, ttl_s, urn, trace_id, meta_id, attempts, reason, detail, record_id,
  record, content
FROM json_each(:spans) AS span CROSS JOIN stage_row
  ON row_id >= json_extract(span.value, '$[0]') AND row_id < json_extract(span.value, '$[1]')
WHERE reason IS NOT NULL ORDER BY row_id;

-- name: insert_claims
-- rows: subscription_id, claim, seq, claimed_at
INSERT INTO claim (subscription_id, claim, seq, claimed_at) VALUES {rows:(?,?,?,?)};

-- name: create_history_id
-- Run at startup; has an effect only on the first one.
INSERT INTO meta (name, value) VALUES ('history_id', lower(hex(randomblob(16))))
ON CONFLICT (name) DO NOTHING;
