-- The statements of ``writes.py``, in its order.

-- name: delete_body
-- index: PRIMARY KEY
DELETE FROM body WHERE seq = :seq;

-- name: erase_details
-- Removes what workers reported about the failures of a message.
-- index: event_seq
UPDATE event SET detail = NULL WHERE seq = :seq AND kind IN ('retry', 'failure');

-- name: erase_columns
-- Removes what the history holds of a message's content, also its checksum.
-- index: history_seq
UPDATE history SET trace_id = NULL, meta_id = NULL, group_name = NULL, unique_key = NULL, crc = 0,
  erased_at = coalesce(erased_at, CAST(:at_ms AS bigint))
WHERE seq = :seq;

-- name: link_messages
-- Links a message to the message from which it was created, by an event with that message's id.
-- index: PRIMARY KEY
-- index: history_seq
INSERT INTO event_entry (seq, at_ms, kind, detail) SELECT :seq, :at_ms, :kind, coalesce(
  (SELECT message_id(seq, token) FROM message WHERE seq = :source_seq),
  (SELECT message_id(seq, token) FROM history WHERE seq = :source_seq),
  seq_digits(:source_seq));

-- name: shift_deadlines
-- Subtracts the broker's downtime from the remaining time, also of delays, of messages stored
-- before it.
UPDATE message SET deadline_ms = deadline_ms - :away_ms, due_ms = due_ms - :away_ms
WHERE (deadline_ms IS NOT NULL OR due_ms IS NOT NULL) AND seq < :first_number
  AND position & 281474976710655 < :first_number AND NOT seq IN ids(:excluded);

-- name: unblock_messages
-- index: message_blocked
UPDATE message SET state = 0 WHERE queue_id = :queue_id AND state = 7;

-- name: forget_heads
-- index: message_head
UPDATE message SET head_since = NULL WHERE queue_id = :queue_id AND head_since IS NOT NULL;

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

-- name: seal_stage
-- Keeps the remaining rows of a partial publish.
-- index: PRIMARY KEY
UPDATE stage SET token = :token, until_ms = :until_ms WHERE stage_id = :stage_id;

-- name: drop_stage
-- Marks a stage as published or cancelled; its rows are removed later, in slices.
-- index: PRIMARY KEY
UPDATE stage SET token = NULL WHERE stage_id = :stage_id;

-- name: drop_stage_queues
-- index: PRIMARY KEY
DELETE FROM stage_part WHERE stage_id = :stage_id;

-- name: copy_staged_messages
-- Appends new messages to their queues, numbered in the order of the staged rows.
-- index: PRIMARY KEY
INSERT INTO message (seq, token, queue_id, position, state, ttl_s, deadline_ms, published_at,
  deliveries, charged, size, crc, publisher, urn, trace_id, meta_id, attempts, group_name)
SELECT row_id + CAST(:offset AS bigint), token, queue_id, row_id + CAST(:offset AS bigint),
  CASE WHEN group_name IS NULL THEN 0 ELSE 7 END,
  ttl_s,  CAST(:steady_ms AS bigint) + ttl_s * 1000, CAST(:at_ms AS bigint), 0, 0, length(content),
  checksum(row_id + CAST(:offset AS bigint), content), CAST(:publisher AS bigint),
  urn, trace_id, meta_id, attempts, group_name
FROM stage_row WHERE row_id >= :first_row AND row_id < :end_row AND reason IS NULL ORDER BY row_id;

-- name: admit_copied_rows
-- index: PRIMARY KEY
-- index: message_group
-- index: message_head
UPDATE message SET state = 0
WHERE seq >= CAST(:first AS bigint) AND seq < CAST(:end AS bigint) AND state = 7
  AND NOT EXISTS (SELECT 1 FROM message AS earlier
    WHERE earlier.queue_id = message.queue_id AND earlier.group_name = message.group_name
      AND earlier.group_name IS NOT NULL AND earlier.source_queue_id IS NULL
      AND earlier.state IN (0, 7) AND earlier.position < message.position)
  AND NOT EXISTS (SELECT 1 FROM message AS head
    WHERE head.queue_id = message.queue_id AND head.group_name = message.group_name
      AND head.head_since IS NOT NULL);

-- name: copy_staged_bodies
-- index: PRIMARY KEY
INSERT INTO body (seq, content) SELECT row_id + CAST(:offset AS bigint), content
FROM stage_row WHERE row_id >= :first_row AND row_id < :end_row AND reason IS NULL ORDER BY row_id;

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

-- name: record_history_reader
INSERT INTO reader (name, "offset", at_ms, owner) VALUES (:name, :offset, :at_ms, :owner)
ON CONFLICT (name) DO UPDATE
  SET "offset" = excluded."offset", at_ms = excluded.at_ms, owner = excluded.owner;

-- name: delete_history_reader
DELETE FROM reader WHERE name = :name;

-- name: insert_audit
INSERT INTO audit (audit_id, at_ms, actor, source, address, action, target, count, reason, result,
  detail, request_id)
VALUES (:audit_id, :at_ms, :actor, :source, :address, :action, :target, :number, :reason, :result,
  :detail, :request_id);

-- name: advance_audit
-- Adds a completed slice of a bulk job to its audit row.
UPDATE audit SET count = count + CAST(:more AS bigint), result = :result WHERE audit_id = :audit_id;

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

-- name: put_schedule
INSERT INTO schedule (schedule_id, name, cron, timezone, queue, content, encoding, ttl_s, priority,
  group_name, is_enabled, missed, missed_max, created_at, created_by, changed_at, changed_by,
  seen_upto)
VALUES (:schedule_id, :name, :cron, :timezone, :queue, :content, :encoding, :ttl_s, :priority,
  :group, :is_enabled, :missed, :missed_max, :created_at, :created_by, :changed_at, :changed_by,
  :seen_upto);

-- name: set_schedule_seen
-- index: PRIMARY KEY
UPDATE schedule SET seen_upto = :seen_upto WHERE schedule_id = :schedule_id;

-- name: delete_schedule
-- index: PRIMARY KEY
DELETE FROM schedule WHERE schedule_id = :schedule_id;

-- name: delete_schedule_runs
-- index: PRIMARY KEY
DELETE FROM schedule_run WHERE schedule_id = :schedule_id;

-- name: put_schedule_run
INSERT INTO schedule_run (schedule_id, tick_ms, at_ms, outcome, detail, message_id, run_by)
VALUES (:schedule_id, :tick_ms, :at_ms, :outcome, :detail, :message_id, :run_by)
ON CONFLICT (schedule_id, tick_ms) DO UPDATE SET at_ms = excluded.at_ms,
  outcome = excluded.outcome, detail = excluded.detail, message_id = excluded.message_id,
  run_by = excluded.run_by;

-- name: trim_schedule_runs
-- index: PRIMARY KEY
DELETE FROM schedule_run
WHERE schedule_id = :schedule_id AND tick_ms < :before_ms AND tick_ms < (
  SELECT tick_ms FROM schedule_run WHERE schedule_id = :schedule_id
  ORDER BY tick_ms DESC LIMIT 1 OFFSET :newest);

-- name: ran_ticks
-- index: PRIMARY KEY
SELECT tick_ms FROM schedule_run
WHERE schedule_id = :schedule_id AND tick_ms > :after_ms AND outcome = 'published';

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

-- name: put_rollup
-- Replaces the row of a span that a stop interrupted.
INSERT INTO rollup (at_s, span_s, published, dispatched, redelivered, acked, requeued,
  expired, dead, deleted, ready, held, bytes, oldest_age_ms, wait, hold, losses, queue_id)
VALUES (:at_s, :span_s, :published, :dispatched, :redelivered, :acked, :requeued, :expired, :dead,
  :deleted, :ready, :held, :size, :oldest_age_ms, :wait, :hold, :losses, :queue_id)
ON CONFLICT (span_s, queue_id, at_s) DO UPDATE SET published = excluded.published,
  dispatched = excluded.dispatched, redelivered = excluded.redelivered, acked = excluded.acked,
  requeued = excluded.requeued, expired = excluded.expired, dead = excluded.dead,
  deleted = excluded.deleted, ready = excluded.ready, held = excluded.held, bytes = excluded.bytes,
  oldest_age_ms = excluded.oldest_age_ms, wait = excluded.wait, hold = excluded.hold,
  losses = excluded.losses;
