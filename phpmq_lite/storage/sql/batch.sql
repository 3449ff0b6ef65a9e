-- The writer's statements for startup, for batches (also writes.sql), and for loading rows after.

-- part: place
seq, token, queue_id, position

-- part: terms
ttl_s, deadline_ms, published_at

-- part: contents
charged, size, crc, publisher

-- part: envelope
urn, trace_id, meta_id, attempts

-- part: source
source_seq, source_queue_id, source_reason

-- part: options
ready_at, due_ms, deliver_at, retries, failed_attempt, head_since, priority, group_name, unique_key

-- part: details
{terms}, first_dispatched_at, last_dispatched_at, deliveries, {contents}, consumer, {envelope}

-- part: envelope_columns
-- Columns of all messages except dead letters, in the order of model.Message.
{place}, state, {details}

-- part: all_columns
{envelope_columns}, {source}, {options}

-- part: history_columns
-- Columns copied to the history, which are all but the state and the options, see keep_options.
{place}, {details}, {source}

-- name: insert_enveloped
-- New messages without source and options that are not in a run; their columns stay NULL.
INSERT INTO message {values: {envelope_columns}};

-- name: insert_with_options
-- New dead letters and messages with options, with all columns.
INSERT INTO message {values: {all_columns}};

-- name: dispatch_messages
-- Stored messages that this batch dispatched.
-- rows: seq, consumer, dispatched (Unix ms)
UPDATE message SET state = 1, deliveries = deliveries + 1, consumer = given.consumer,
  last_dispatched_at = given.at_ms,
  first_dispatched_at = coalesce(first_dispatched_at, given.at_ms)
FROM {given: seq, consumer, at_ms} WHERE message.seq = given.seq;

-- name: update_due
-- Scheduled messages whose time has come in this batch.
UPDATE message {set: seq, position, state, deadline_ms, ready_at, due_ms, deliver_at};

-- name: update_messages
-- Stored messages that this batch returned, requeued or forwarded.
UPDATE message {set: seq, queue_id, position, state, ttl_s, deadline_ms, first_dispatched_at,
  last_dispatched_at, deliveries, charged, consumer};

-- name: update_options
-- Stored messages whose options this batch changed; after update_messages.
UPDATE message {set: seq, {options}};

-- name: update_contents
-- Stored messages whose content this batch replaced.
UPDATE message {set: seq, size, crc, {envelope}};

-- name: replace_bodies
UPDATE body {set: seq, content};

-- part: seqs
-- rows: seq
IN ({rows:?})

-- name: settle_messages
-- twin: settle_run
-- History rows for settled messages in seq order, with the next offsets; of any or of consecutive
-- numbers.
-- before the rows: outcome, reason, now (Unix ms); then first and last seq of a run
-- index: PRIMARY KEY
INSERT INTO history ({offset} outcome, reason, settled_at, {history_columns})
SELECT {next_offset} ?::bigint, ?::text, ?::bigint, {history_columns}
FROM message WHERE seq {{seqs} | BETWEEN ? AND ?} ORDER BY seq;

-- name: settle_dispatched
-- Like settle_messages, for stored messages that this batch both dispatched and settled.  Not
-- updating their live rows in between saves 1 µs per message.
-- before the rows: outcome, reason, now (Unix ms).  rows: seq, consumer, dispatched (Unix ms)
INSERT INTO history ({offset} outcome, reason, settled_at, {history_columns})
SELECT {next_offset} ?::bigint, ?::text, ?::bigint, {place}, {terms},
  coalesce(first_dispatched_at, given.at_ms), given.at_ms, deliveries + 1, {contents},
  given.consumer, {envelope}, {source}
FROM {given: number, consumer, at_ms} CROSS JOIN message ON seq = given.number ORDER BY seq;

-- name: settle_dispatched_run
-- Like settle_dispatched, for messages with consecutive numbers dispatched to one consumer.
-- parameters: consumer, dispatched (Unix ms), outcome, reason, now (Unix ms), first and last seq
-- index: PRIMARY KEY
INSERT INTO history ({offset} outcome, reason, settled_at, {history_columns})
SELECT {next_offset} ?3::bigint, ?4::text, ?5::bigint, {place}, {terms},
  coalesce(first_dispatched_at, ?2::bigint), ?2::bigint, deliveries + 1, {contents},
  ?1::bigint, {envelope}, {source}
FROM message WHERE seq BETWEEN ?6 AND ?7 ORDER BY seq;

-- name: keep_options
-- Those options of settled messages that the history has, too; most messages have none.
-- rows: seq
-- index: history_seq, PRIMARY KEY
UPDATE history SET ready_at = live.ready_at, due_ms = live.due_ms, deliver_at = live.deliver_at,
  retries = live.retries, priority = live.priority, group_name = live.group_name,
  unique_key = live.unique_key
FROM message AS live WHERE live.seq IN ({rows:?}) AND history.seq = live.seq;

-- name: insert_event
INSERT INTO event_entry {values: seq, at_ms, kind, detail};

-- name: insert_receipt
INSERT INTO receipt {values: n, queue_id, seq, at_ms, key_bytes, keys};

-- name: insert_client
INSERT INTO client {values: client, kind, address, opened_at};

-- name: insert_claims
INSERT INTO claim {values: subscription_id, claim, seq, claimed_at};

-- name: insert_staged_rows
INSERT INTO stage_row {values: row_id, queue_id, ttl_s, token, urn, trace_id, meta_id, attempts,
  reason, detail, record_id, record, content, group_name};

-- name: client_records
-- Live dead letters that clients published about messages that were not dead yet: by any client in
-- their dead-letter queue or NAME.dlq, in other queues only by the client that held the message.
-- Reads only the newest few for each message, because clients may publish any number of them.
-- columns: size, source_seq, seq, token, crc
-- index: message_source
SELECT record.size, record.source_seq, record.seq, record.token, record.crc
FROM {given: source_seq, queue_id, other_queue_id, publisher}
CROSS JOIN message AS record ON record.seq IN (
  SELECT seq FROM (
    SELECT newest.seq FROM message AS newest
    WHERE newest.source_seq = given.source_seq AND newest.queue_id = given.queue_id
    ORDER BY newest.seq DESC LIMIT 8) AS newest_few
  UNION
  SELECT seq FROM (
    SELECT newest.seq FROM message AS newest
    WHERE newest.source_seq = given.source_seq AND newest.queue_id = given.other_queue_id
    ORDER BY newest.seq DESC LIMIT 8) AS newest_few
  UNION
  SELECT seq FROM (
    SELECT newest.seq FROM message AS newest
    WHERE newest.source_seq = given.source_seq AND newest.publisher = given.publisher
    ORDER BY newest.seq DESC LIMIT 8) AS newest_few);

-- name: dispatch_several
-- twin: dispatch_run
-- Stored messages that this batch dispatched to one consumer; of any or of consecutive numbers.
-- before the rows: consumer, dispatched (Unix ms); then first and last seq of a run
-- index: PRIMARY KEY
UPDATE message SET state = 1, deliveries = deliveries + 1, consumer = ?1, last_dispatched_at = ?2,
  first_dispatched_at = coalesce(first_dispatched_at, ?2)
WHERE seq {{seqs} | BETWEEN ? AND ?};

-- name: dispatch_heads
-- Like dispatch_several, for the heads of groups, and those that this makes heads.
-- before the rows: consumer, dispatched, head since (Unix ms).  rows: seq
-- index: PRIMARY KEY
UPDATE message SET state = 1, deliveries = deliveries + 1, consumer = ?1, last_dispatched_at = ?2,
  first_dispatched_at = coalesce(first_dispatched_at, ?2), head_since = ?3
WHERE seq {seqs};

-- name: admit_messages
-- Blocked messages that are now the first of their groups.
-- index: PRIMARY KEY
UPDATE message SET state = 0 WHERE seq {seqs};

-- name: delete_messages
-- twin: delete_run
-- parameters: first and last seq of a run
-- index: PRIMARY KEY
DELETE FROM message WHERE seq {{seqs} | BETWEEN ? AND ?};

-- name: delete_receipts
-- rows: n
-- index: PRIMARY KEY
DELETE FROM receipt WHERE n IN ({rows:?});

-- name: insert_queue
-- parameters: queue_id, name, created_at, created_by
INSERT INTO queue (queue_id, name, created_at, created_by) VALUES (?, ?, ?, ?);

-- name: configure_queue
-- parameters: queue_settings.COLUMNS, settings (JSON), created_by, queue_id
UPDATE queue SET on_expire = ?, max_deliveries = ?, ack_timeout_s = ?, max_messages = ?,
  max_bytes = ?, payload_policy = ?, settings = ?, created_by = ? WHERE queue_id = ?;

-- name: close_client
-- parameters: closed_at, framing, revision, reason, client
UPDATE client SET closed_at = ?, framing = ?, revision = ?, reason = ? WHERE client = ?;

-- part: number
-- The number in a position, below the priority.
(position & 281474976710655)

-- part: state_rows
SELECT {all_columns}
FROM message WHERE queue_id = :of AND position > :after AND {number} <= :upto AND state = STATE

-- name: all_page
-- A page of a queue's live messages, in order.
-- parameters: of (queue_id); after (position, exclusive); upto (number, inclusive); limit
-- index: message_place
-- index: message_held
-- index: message_scheduled
-- index: message_blocked
{each state_rows UNION ALL}
ORDER BY position LIMIT :limit;

-- name: ready_page
-- A page of a queue's ready messages, in order.
-- parameters: of (queue_id); after (position, exclusive); upto (number, inclusive); limit
-- index: message_place
{ready_rows} ORDER BY position LIMIT :limit;

-- name: claimed_page
-- A page of messages held by a subscription, in claim order.
-- parameters: of (subscription_id); after (claim, exclusive); upto (claim, inclusive); limit
-- index: PRIMARY KEY
SELECT {all_columns}
FROM claim CROSS JOIN message USING (seq)
WHERE subscription_id = :of AND claim > :after AND claim <= :upto
ORDER BY claim LIMIT :limit;

-- name: messages_by_seq
-- rows: seq
SELECT {all_columns} FROM message WHERE seq IN ({rows:?});

-- name: settled_by_seq
-- Settled messages with the columns of live ones.  The state is the outcome, or 0 (ready) if the
-- message was restored; in that case, its restore event contains the id of a younger message.
-- rows: seq
-- index: history_seq
SELECT {place},
  CASE WHEN EXISTS (SELECT 1 FROM event WHERE event.seq = history.seq AND kind = 'restore'
    AND detail > message_id(history.seq, token)) THEN 0 ELSE outcome END,
  {details}, {source}, ready_at, due_ms, deliver_at, retries, NULL, NULL, priority, group_name,
  unique_key
FROM history WHERE seq IN ({rows:?});

-- name: due_messages
-- Ready messages whose deadline has passed, soonest deadline first.
-- parameters: from (steady ms), before which none is due; now (steady ms); limit.  Without the
--   first one, the index would lead through all messages that an old snapshot still keeps.
-- index: message_deadline
SELECT {all_columns}
FROM message
WHERE state IN (0, 7) AND deadline_ms IS NOT NULL AND deadline_ms >= ? AND deadline_ms <= ?
ORDER BY deadline_ms LIMIT ?;

-- name: next_deadline
-- Soonest deadline of a ready message from a time on.
-- parameters: from (steady ms, inclusive)
-- index: message_deadline
SELECT min(deadline_ms) FROM message
WHERE state IN (0, 7) AND deadline_ms IS NOT NULL AND deadline_ms >= ?;

-- name: scheduled_after_delay
-- twin: scheduled_by_date
-- Scheduled messages whose time has come, the earliest first: after a delay, or by their date.
-- parameters: now (steady ms; for dates Unix ms); limit
-- index: {message_due | message_date}
SELECT {all_columns}
FROM message WHERE state = 6 AND deliver_at IS {NULL | NOT NULL} AND {due_ms | deliver_at} <= ?
ORDER BY {due_ms | deliver_at}, seq LIMIT ?;

-- name: next_after_delay
-- twin: next_by_date
-- When the next scheduled message is due, from a time on.
-- parameters: from (steady ms; for dates Unix ms; inclusive)
-- index: {message_due | message_date}
SELECT min({due_ms | deliver_at}) FROM message
WHERE state = 6 AND deliver_at IS {NULL | NOT NULL} AND {due_ms | deliver_at} >= ?;

-- name: unique_messages
-- columns: queue_id, unique_key, seq
-- index: message_unique
SELECT message.queue_id, message.unique_key, seq
FROM {given: queue_id, unique_key}
CROSS JOIN message ON message.queue_id = given.queue_id
  AND message.unique_key = given.unique_key AND message.source_queue_id IS NULL;

-- name: first_of_groups
-- The first message of each group, unless it is ready already.
-- columns: seq, queue_id, position, group_name
-- index: message_group
SELECT seq, queue_id, position, group_name FROM message WHERE state = 7 AND seq IN (
  SELECT (SELECT seq FROM message
    WHERE queue_id = given.queue_number AND group_name = given.group_text AND state IN (0, 7)
      AND source_queue_id IS NULL
    ORDER BY position LIMIT 1)
  FROM {given: queue_number, group_text});

-- name: heads
-- The heads of groups, read at startup.
-- columns: queue_id, group_name, seq
-- index: message_head
SELECT queue_id, group_name, seq FROM message WHERE head_since IS NOT NULL;

-- name: bodies
-- rows: seq
SELECT seq, content FROM body WHERE seq IN ({rows:?});

-- name: checksums
-- rows: seq
SELECT seq, crc FROM message WHERE seq {seqs};

-- name: published_checksums
-- twin: settled_published_checksums
-- Checksums of contents as published; NULL if a retry may have changed the content.
-- index: {PRIMARY KEY | history_seq}
SELECT seq, CASE WHEN retries IS NULL AND ready_at IS NULL AND due_ms IS NULL THEN crc END
FROM {message | history} WHERE seq {seqs};

-- name: release_dispatched
-- At startup, returns messages held by connections to their positions; claimed messages stay.
-- index: message_held
UPDATE message SET state = 0
WHERE state = 1 AND NOT EXISTS (SELECT 1 FROM claim WHERE claim.seq = message.seq);

-- name: admit_first_of_groups
-- At startup, makes the first message of each group ready that is blocked; the broker may have
-- stopped before it did.  If another one is in flight, the broker blocks it again.
-- index: message_group
WITH RECURSIVE first (seq) AS (
  SELECT (SELECT seq FROM message
    WHERE group_name IS NOT NULL AND source_queue_id IS NULL AND state IN (0, 7)
    ORDER BY queue_id, group_name, position LIMIT 1)
  UNION ALL
  SELECT (SELECT later.seq FROM message AS later
    WHERE later.group_name IS NOT NULL AND later.source_queue_id IS NULL AND later.state IN (0, 7)
      AND (later.queue_id, later.group_name) > (message.queue_id, message.group_name)
    ORDER BY later.queue_id, later.group_name, later.position LIMIT 1)
  FROM first JOIN message ON message.seq = first.seq)
UPDATE message SET state = 0 WHERE state = 7 AND seq IN (SELECT seq FROM first);

-- name: queues
SELECT queue_id, name, created_at, on_expire, max_deliveries, ack_timeout_s, max_messages,
  max_bytes, payload_policy, settings, live_count, live_bytes, scheduled_count, created_by
FROM queue;

-- name: records_by_source
-- The number of dead letters in a queue by the queue where they died; ready ones, then claimed ones.
-- parameters: of (queue_id)
-- index: message_place
-- index: message_held
SELECT source_queue_id, count(*) FROM message
WHERE queue_id = :of AND state = 0 AND source_queue_id IS NOT NULL GROUP BY source_queue_id
UNION ALL
SELECT source_queue_id, count(*) FROM message
WHERE queue_id = :of AND state = 1 AND source_queue_id IS NOT NULL GROUP BY source_queue_id;

-- name: newest_key
-- Number of the newest key; 0 if there is none.
SELECT coalesce(max(n), 0) FROM receipt;

-- name: receipts
-- Receipts that have not expired, newest first.
-- parameters: before (n); added after (steady ms); limit
-- index: PRIMARY KEY
SELECT n, queue_id, seq, at_ms, key_bytes, keys FROM receipt
WHERE n < ? AND at_ms > ? ORDER BY n DESC LIMIT ?;

-- name: counters
SELECT name, value FROM counter WHERE name <> 'next_number'
UNION ALL SELECT 'next_number', next_number FROM line;

-- name: close_clients
-- At startup, closes the rows of connections that were open when the broker stopped.
-- parameters: closed_at (Unix ms), reason
-- index: client_closed
UPDATE client SET closed_at = ?, reason = ? WHERE closed_at IS NULL AND client > 0;

-- name: insert_clock_step
-- Applies to all messages settled from now on; stored before any batch decided after the change.
-- parameters: at_ms (steady), step_ms
INSERT INTO clock_step (from_offset, at_ms, step_ms)
SELECT coalesce(max("offset"), 0) + 1, CAST(? AS bigint), CAST(? AS bigint) FROM history;

-- name: newest_clock_step
-- columns: step_ms; no row in a new database
SELECT step_ms FROM clock_step ORDER BY number DESC LIMIT 1;

-- name: drop_unfinished_stages
-- Run at startup, because the publishers of unfinished stages are disconnected.
UPDATE stage SET token = NULL WHERE is_whole = 0 AND token IS NOT NULL;

-- name: delete_queues_of_dropped_stages
-- Run at startup, after drop_unfinished_stages.
DELETE FROM stage_part WHERE stage_id IN (SELECT stage_id FROM stage WHERE token IS NULL);

-- name: stages
-- Stages read at startup, oldest first.
-- columns: stage_id, token, until_ms, rows, bytes
SELECT stage_id, token, until_ms, "rows", bytes FROM stage WHERE token IS NOT NULL
ORDER BY stage_id;

-- name: stage_queues
-- Staged totals by queue, read at startup.
-- columns: those of the table stage_part
SELECT stage_id, queue_id, "rows", bytes, bad_rows, bad_bytes, least_ttl_s, policy
FROM stage_part;

-- name: next_stage_id
-- The next stage_id, read at startup.
SELECT coalesce(max(stage_id), 0) + 1 FROM stage;

-- name: published_versions
-- Published versions read at startup, least recently used first.
-- columns: app_id, version, owner, used_ms, single_use
SELECT app_id, version, owner, used_ms, single_use FROM published ORDER BY used_ms, app_id;

-- name: delete_claims
-- rows: seq
-- index: claim_seq
DELETE FROM claim WHERE seq IN ({rows:?});

-- name: subscriptions
-- All subscriptions, read at startup.
-- columns: subscription_id, name, queue_id, next_claim, acked_upto
SELECT subscription_id, name, queue_id, next_claim, acked_upto FROM subscription;

-- name: claimed_by_queue
-- Claimed messages of each queue, read at startup.
-- columns: queue_id, messages
SELECT message.queue_id, count(*)
FROM claim CROSS JOIN message USING (seq) GROUP BY message.queue_id;

-- name: reader_owners
-- History readers, read at startup, least recently active first.
-- columns: name, owner
SELECT name, owner FROM reader ORDER BY at_ms, name;

-- name: create_history_id
-- twin: renew_history_id
-- At startup, has an effect only on the first one; a new id invalidates the offsets that history
-- readers have stored.
INSERT INTO meta (name, value) VALUES ('history_id', ?)
ON CONFLICT (name) DO {NOTHING | UPDATE SET value = excluded.value};

-- name: interrupt_audit
-- At startup, marks jobs that were running when the broker stopped as interrupted.
UPDATE audit SET result = 'interrupted' WHERE result = 'running';
