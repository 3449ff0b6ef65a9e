-- The writer's statements for startup, for batches, and for loading rows after a batch.

-- part: envelope_columns
-- Columns set for every message, plus the indexed members of an envelope, in the order of
-- model.Message.
seq, token, queue_id, position, state, ttl_s, deadline_ms, published_at,
  first_dispatched_at, last_dispatched_at, deliveries, charged, size, crc, publisher, consumer,
  urn, trace_id, meta_id, attempts

-- part: all_columns
-- All columns of a live message, in the order of model.Message.
{envelope_columns}, source_seq, source_queue_id, source_reason

-- part: history_columns
-- Columns copied to the history, which are all columns except the state.
seq, token, queue_id, position, ttl_s,
  deadline_ms, published_at, first_dispatched_at, last_dispatched_at, deliveries, charged, size,
  crc, publisher, consumer, urn, trace_id, meta_id, attempts, source_seq, source_queue_id,
  source_reason

-- name: insert_enveloped
-- New messages that are not dead letters and not in a run; dead-letter columns stay NULL.
INSERT INTO message {values: {envelope_columns}};

-- name: insert_with_source
-- New dead letters, with all columns.
INSERT INTO message {values: {all_columns}};

-- name: dispatch_messages
-- Stored messages that this batch dispatched.
-- rows: seq, consumer, dispatched (Unix ms)
UPDATE message SET state = 1, deliveries = deliveries + 1, consumer = given.consumer,
  last_dispatched_at = given.at_ms,
  first_dispatched_at = coalesce(first_dispatched_at, given.at_ms)
FROM {given: seq, consumer, at_ms} WHERE message.seq = given.seq;

-- name: update_messages
-- Stored messages that this batch returned, requeued or forwarded.
UPDATE message SET queue_id = given.queue_id, position = given.position, state = given.state,
  ttl_s = given.ttl_s, deadline_ms = given.deadline_ms,
  first_dispatched_at = given.first_dispatched_at, last_dispatched_at = given.last_dispatched_at,
  deliveries = given.deliveries, charged = given.charged, consumer = given.consumer
FROM {given: seq, queue_id, position, state, ttl_s, deadline_ms, first_dispatched_at,
  last_dispatched_at, deliveries, charged, consumer} WHERE message.seq = given.seq;

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
SELECT {next_offset} ?::bigint, ?::text, ?::bigint, message.seq, token, queue_id, position, ttl_s,
  deadline_ms, published_at, coalesce(first_dispatched_at, given.at_ms), given.at_ms,
  deliveries + 1, charged, size, crc, publisher, given.consumer, urn, trace_id, meta_id, attempts,
  source_seq, source_queue_id, source_reason
FROM {given: seq, consumer, at_ms} CROSS JOIN message ON message.seq = given.seq
ORDER BY message.seq;

-- name: settle_dispatched_run
-- Like settle_dispatched, for messages with consecutive numbers dispatched to one consumer.
-- parameters: consumer, dispatched (Unix ms), outcome, reason, now (Unix ms), first and last seq
-- index: PRIMARY KEY
INSERT INTO history ({offset} outcome, reason, settled_at, {history_columns})
SELECT {next_offset} ?3::bigint, ?4::text, ?5::bigint, seq, token, queue_id, position, ttl_s,
  deadline_ms, published_at, coalesce(first_dispatched_at, ?2::bigint), ?2::bigint,
  deliveries + 1, charged, size, crc, publisher, ?1::bigint, urn, trace_id, meta_id, attempts,
  source_seq, source_queue_id, source_reason
FROM message WHERE seq BETWEEN ?6 AND ?7 ORDER BY seq;

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
  reason, detail, record_id, record, content};

-- name: client_records
-- Live dead letters that clients published about messages that were not dead yet: by any client in
-- their dead-letter queue or NAME.dlq, in other queues only by the client that held the message.
-- Reads only the newest few for each message, because clients may publish any number of them.
-- columns: size, source_seq, seq, token
-- index: message_source
SELECT record.size, record.source_seq, record.seq, record.token
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

-- name: all_page
-- A page of a queue's live messages, in order.
-- parameters: of (queue_id); after (position, exclusive); upto (position, inclusive); limit
-- index: message_place
-- index: message_held
SELECT {all_columns}
FROM message WHERE queue_id = :of AND position > :after AND position <= :upto AND state = 0
UNION ALL
SELECT {all_columns}
FROM message WHERE queue_id = :of AND position > :after AND position <= :upto AND state = 1
ORDER BY position LIMIT :limit;

-- name: ready_page
-- A page of a queue's ready messages, in order.
-- parameters: of (queue_id); after (position, exclusive); upto (position, inclusive); limit
-- index: message_place
SELECT {all_columns}
FROM message WHERE queue_id = :of AND position > :after AND position <= :upto AND state = 0
ORDER BY position LIMIT :limit;

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
SELECT {all_columns}
FROM message WHERE seq IN ({rows:?});

-- name: settled_by_seq
-- Settled messages with the columns of live ones.  The state is the outcome, or 0 (ready) if the
-- message was restored; in that case, its restore event contains the id of a younger message.
-- rows: seq
-- index: history_seq
SELECT seq, token, queue_id, position,
  CASE WHEN EXISTS (SELECT 1 FROM event WHERE event.seq = history.seq AND kind = 'restore'
    AND detail > message_id(history.seq, token)) THEN 0 ELSE outcome END,
  ttl_s, deadline_ms, published_at, first_dispatched_at, last_dispatched_at, deliveries, charged,
  size, crc, publisher, consumer, urn, trace_id, meta_id, attempts, source_seq, source_queue_id,
  source_reason
FROM history WHERE seq IN ({rows:?});

-- name: due_messages
-- Ready messages whose deadline has passed, soonest deadline first.
-- parameters: from (steady ms), before which none is due; now (steady ms); limit.  Without the
--   first one, the index would lead through all messages that an old snapshot still keeps.
-- index: message_deadline
SELECT {all_columns}
FROM message WHERE state = 0 AND deadline_ms IS NOT NULL AND deadline_ms >= ? AND deadline_ms <= ?
ORDER BY deadline_ms LIMIT ?;

-- name: next_deadline
-- Soonest deadline of a ready message from a time on.
-- parameters: from (steady ms, inclusive)
-- index: message_deadline
SELECT min(deadline_ms) FROM message
WHERE state = 0 AND deadline_ms IS NOT NULL AND deadline_ms >= ?;

-- name: bodies
-- rows: seq
SELECT seq, content FROM body WHERE seq IN ({rows:?});

-- name: checksums
-- twin: settled_checksums
-- index: {PRIMARY KEY | history_seq}
SELECT seq, crc FROM {message | history} WHERE seq {seqs};

-- name: release_dispatched
-- At startup, returns messages held by connections to their positions; claimed messages stay.
-- index: message_held
UPDATE message SET state = 0
WHERE state = 1 AND NOT EXISTS (SELECT 1 FROM claim WHERE claim.seq = message.seq);

-- name: queues
SELECT queue_id, name, created_at, on_expire, max_deliveries, ack_timeout_s, max_messages,
  max_bytes, payload_policy, settings, live_count, live_bytes, created_by FROM queue;

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

-- name: delete_body
-- index: PRIMARY KEY
DELETE FROM body WHERE seq = :seq;

-- name: link_messages
-- Links a message to the message from which it was created, by an event with that message's id.
-- parameters: seq, at_ms, kind; seq of the other message three times
-- index: PRIMARY KEY
-- index: history_seq
INSERT INTO event_entry (seq, at_ms, kind, detail) SELECT :seq, :at_ms, :kind, coalesce(
  (SELECT message_id(seq, token) FROM message WHERE seq = :source_seq),
  (SELECT message_id(seq, token) FROM history WHERE seq = :source_seq),
  seq_digits(:source_seq));

-- name: insert_clock_step
-- Applies to all messages settled from now on; stored before any batch decided after the change.
-- parameters: at_ms (steady), step_ms
INSERT INTO clock_step (from_offset, at_ms, step_ms)
SELECT coalesce(max("offset"), 0) + 1, CAST(? AS bigint), CAST(? AS bigint) FROM history;

-- name: newest_clock_step
-- columns: step_ms; no row in a new database
SELECT step_ms FROM clock_step ORDER BY number DESC LIMIT 1;

-- name: shift_deadlines
-- Subtracts the broker's downtime from the remaining time of messages stored before it.
UPDATE message SET deadline_ms = deadline_ms - :away_ms
WHERE deadline_ms IS NOT NULL AND seq < :first_number AND position < :first_number
  AND NOT seq IN ids(:excluded);

-- name: create_stage
INSERT INTO stage (stage_id, token, created_at, until_ms, "rows", bytes, is_whole)
VALUES (:stage_id, :token, :created_at, :until_ms, 0, 0, 0);

-- name: update_stage
-- index: PRIMARY KEY
UPDATE stage SET "rows" = :rows, bytes = :bytes, is_whole = :is_whole WHERE stage_id = :stage_id;

-- name: update_stage_queue
INSERT INTO stage_part
  (stage_id, queue_id, "rows", bytes, bad_rows, bad_bytes, least_ttl_s, policy)
VALUES (:stage_id, :queue_id, :rows, :bytes, :bad_rows, :bad_bytes, :least_ttl_s, :policy)
ON CONFLICT (stage_id, queue_id) DO UPDATE SET "rows" = excluded."rows", bytes = excluded.bytes,
  bad_rows = excluded.bad_rows, bad_bytes = excluded.bad_bytes,
  least_ttl_s = excluded.least_ttl_s, policy = excluded.policy;

-- name: copy_staged_messages
-- Appends new messages to their queues, numbered in the order of the staged rows.
-- index: PRIMARY KEY
INSERT INTO message (seq, token, queue_id, position, state, ttl_s, deadline_ms, published_at,
  deliveries, charged, size, crc, publisher, urn, trace_id, meta_id, attempts)
SELECT row_id + CAST(:offset AS bigint), token, queue_id, row_id + CAST(:offset AS bigint), 0,
  ttl_s,  CAST(:steady_ms AS bigint) + ttl_s * 1000, CAST(:at_ms AS bigint), 0, 0, length(content),
  checksum(row_id + CAST(:offset AS bigint), content), CAST(:publisher AS bigint),
  urn, trace_id, meta_id, attempts
FROM stage_row WHERE row_id >= :first_row AND row_id < :end_row AND reason IS NULL ORDER BY row_id;

-- name: copy_staged_bodies
-- index: PRIMARY KEY
INSERT INTO body (seq, content) SELECT row_id + CAST(:offset AS bigint), content
FROM stage_row WHERE row_id >= :first_row AND row_id < :end_row AND reason IS NULL ORDER BY row_id;

-- name: drop_stage
-- Marks a stage as published or cancelled; its rows are removed later, in slices.
-- index: PRIMARY KEY
UPDATE stage SET token = NULL WHERE stage_id = :stage_id;

-- name: seal_stage
-- Keeps the remaining rows of a partial publish.
-- index: PRIMARY KEY
UPDATE stage SET token = :token, until_ms = :until_ms WHERE stage_id = :stage_id;

-- name: drop_stage_queues
-- index: PRIMARY KEY
DELETE FROM stage_part WHERE stage_id = :stage_id;

-- name: record_published_version
INSERT INTO published (app_id, version, at_ms, "rows", owner, used_ms, single_use)
VALUES (:app_id, :version, :at_ms, :rows, :owner, :used_ms, :is_single)
ON CONFLICT (app_id) DO UPDATE SET version = excluded.version, at_ms = excluded.at_ms,
  "rows" = excluded."rows", owner = excluded.owner, used_ms = excluded.used_ms,
  single_use = excluded.single_use;

-- name: record_app_id_use
-- Records a repeated publish or a new owner of an app_id.
-- index: PRIMARY KEY
UPDATE published SET owner = :owner, used_ms = :used_ms WHERE app_id = :app_id;

-- name: forget_published_version
-- index: PRIMARY KEY
DELETE FROM published WHERE app_id = :app_id;

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

-- name: create_subscription
INSERT INTO subscription (subscription_id, name, queue_id, next_claim, acked_upto, created_at)
VALUES (:subscription_id, :name, :queue_id, 1, 0, :created_at);

-- name: update_subscription
-- index: PRIMARY KEY
UPDATE subscription
SET queue_id = :queue_id, next_claim = :next_claim, acked_upto = :acked_upto
WHERE subscription_id = :subscription_id;

-- name: delete_subscription
-- index: PRIMARY KEY
DELETE FROM subscription WHERE subscription_id = :subscription_id;

-- name: subscriptions
-- All subscriptions, read at startup.
-- columns: subscription_id, name, queue_id, next_claim, acked_upto
SELECT subscription_id, name, queue_id, next_claim, acked_upto FROM subscription;

-- name: claimed_by_queue
-- Claimed messages of each queue, read at startup.
-- columns: queue_id, messages
SELECT message.queue_id, count(*)
FROM claim CROSS JOIN message USING (seq) GROUP BY message.queue_id;

-- name: record_history_reader
INSERT INTO reader (name, "offset", at_ms, owner) VALUES (:name, :offset, :at_ms, :owner)
ON CONFLICT (name) DO UPDATE
  SET "offset" = excluded."offset", at_ms = excluded.at_ms, owner = excluded.owner;

-- name: delete_history_reader
DELETE FROM reader WHERE name = :name;

-- name: reader_owners
-- History readers, read at startup, least recently active first.
-- columns: name, owner
SELECT name, owner FROM reader ORDER BY at_ms, name;

-- name: insert_audit
INSERT INTO audit (audit_id, at_ms, actor, source, address, action, target, count, reason, result,
  detail, request_id)
VALUES (:audit_id, :at_ms, :actor, :source, :address, :action, :target, :number, :reason, :result,
  :detail, :request_id);

-- name: advance_audit
-- Adds a completed slice of a bulk job to its audit row.
UPDATE audit SET count = count + CAST(:more AS bigint), result = :result WHERE audit_id = :audit_id;

-- name: create_history_id
-- twin: renew_history_id
-- At startup, has an effect only on the first one; a new id invalidates the offsets that history
-- readers have stored.
INSERT INTO meta (name, value) VALUES ('history_id', ?)
ON CONFLICT (name) DO {NOTHING | UPDATE SET value = excluded.value};

-- name: interrupt_audit
-- At startup, marks jobs that were running when the broker stopped as interrupted.
UPDATE audit SET result = 'interrupted' WHERE result = 'running';

-- name: add_user
INSERT INTO "user" (user_id, name, password, role, queues, created_at)
VALUES (:user_id, :name, :password, :role, :queues, :created_at);

-- name: set_password
UPDATE "user" SET password = :password WHERE user_id = :user_id;

-- name: set_user_rights
UPDATE "user" SET role = :role, queues = :queues WHERE user_id = :user_id;

-- name: set_last_login
UPDATE "user" SET last_login_at = :at_ms WHERE user_id = :user_id;

-- name: delete_user
DELETE FROM "user" WHERE user_id = :user_id;

-- name: add_token
INSERT INTO token (token_id, name, sha256, role, queues, created_at, created_by, expires_at)
VALUES (:token_id, :name, :sha256, :role, :queues, :created_at, :created_by, :expires_at);

-- name: set_token_used
UPDATE token SET last_used_at = :at_ms WHERE token_id = :token_id;

-- name: expire_token
UPDATE token SET expires_at = :expires_at WHERE token_id = :token_id;

-- name: delete_token
DELETE FROM token WHERE token_id = :token_id;

-- name: add_session
INSERT INTO session
  (session_id, sha256, user_id, csrf, created_at, seen_at, expires_at, address, agent)
VALUES (:session_id, :sha256, :user_id, :csrf, :created_at, :seen_at, :expires_at, :address,
  :agent);

-- name: set_session_seen
UPDATE session SET seen_at = :at_ms WHERE session_id = :session_id;

-- name: delete_session
DELETE FROM session WHERE session_id = :session_id;

-- name: delete_user_sessions
-- index of SQLite: session_user
DELETE FROM session WHERE user_id = :user_id;

-- name: save_item
-- Replaces any item that has the same name.
INSERT INTO saved (kind, name, content, saved_at, saved_by)
VALUES (:kind, :name, :content, :saved_at, :saved_by)
ON CONFLICT (kind, name) DO UPDATE SET
  content = excluded.content, saved_at = excluded.saved_at, saved_by = excluded.saved_by;

-- name: delete_saved_item
DELETE FROM saved WHERE kind = :kind AND name = :name;

-- name: dismiss_start_report
-- Hides a startup report for everyone.
-- index: PRIMARY KEY
UPDATE start SET dismissed_by = :dismissed_by WHERE start_id = :start_id AND dismissed_by IS NULL;

-- part: clock_ahead_s
-- Seconds by which the clock is ahead of its earliest step; rows may be younger by this amount.
coalesce((SELECT value FROM counter WHERE name = 'clock_step_ms')
  - (SELECT min(step_ms) FROM clock_step), 0) / 1000

-- name: put_rollup
-- Replaces the row of a span that a stop interrupted.
INSERT INTO rollup (at_s, span_s, published, dispatched, redelivered, acked, requeued,
  expired, dead, deleted, ready, held, bytes, oldest_age_ms, wait, hold, queue_id)
VALUES (:at_s, :span_s, :published, :dispatched, :redelivered, :acked, :requeued, :expired, :dead,
  :deleted, :ready, :held, :size, :oldest_age_ms, :wait, :hold, :queue_id)
ON CONFLICT (span_s, queue_id, at_s) DO UPDATE SET published = excluded.published,
  dispatched = excluded.dispatched, redelivered = excluded.redelivered, acked = excluded.acked,
  requeued = excluded.requeued, expired = excluded.expired, dead = excluded.dead,
  deleted = excluded.deleted, ready = excluded.ready, held = excluded.held, bytes = excluded.bytes,
  oldest_age_ms = excluded.oldest_age_ms, wait = excluded.wait, hold = excluded.hold;

-- name: trim_rollups
-- Removes the oldest spans of one length, at most :limit rows.
-- index: rollup_time
DELETE FROM rollup
WHERE (span_s, queue_id, at_s) IN (
  SELECT span_s, queue_id, at_s FROM rollup INDEXED BY rollup_time
  WHERE span_s = :span_s AND at_s < :before_s - {clock_ahead_s}
  ORDER BY at_s
  LIMIT :limit
);
