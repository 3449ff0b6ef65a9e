-- Scheduled messages, priorities, groups, unique keys and retries.

ALTER TABLE queue ADD COLUMN scheduled_count BIGINT NOT NULL DEFAULT 0;

ALTER TABLE message DROP CONSTRAINT message_state_check;
ALTER TABLE message ADD CONSTRAINT message_state_check CHECK (state IN (0, 1, 6, 7));
ALTER TABLE message
  ADD COLUMN ready_at BIGINT,
  ADD COLUMN due_ms BIGINT,
  ADD COLUMN deliver_at BIGINT,
  ADD COLUMN retries BIGINT,
  ADD COLUMN failed_attempt BIGINT,
  ADD COLUMN head_since BIGINT,
  ADD COLUMN priority BIGINT,
  ADD COLUMN group_name TEXT COLLATE "C",
  ADD COLUMN unique_key TEXT COLLATE "C";
DROP INDEX message_deadline;
CREATE INDEX message_deadline ON message (deadline_ms)
  WHERE deadline_ms IS NOT NULL AND state IN (0, 7);
CREATE INDEX message_scheduled ON message (queue_id, position) WHERE state = 6;
CREATE INDEX message_due ON message (due_ms, seq) WHERE state = 6 AND deliver_at IS NULL;
CREATE INDEX message_date ON message (deliver_at, seq) WHERE state = 6 AND deliver_at IS NOT NULL;
CREATE INDEX message_blocked ON message (queue_id, position) WHERE state = 7;
CREATE INDEX message_group ON message (queue_id, group_name, position)
  WHERE group_name IS NOT NULL AND source_queue_id IS NULL AND state IN (0, 7);
CREATE INDEX message_head ON message (queue_id, group_name) WHERE head_since IS NOT NULL;
CREATE INDEX message_unique ON message (queue_id, unique_key)
WHERE unique_key IS NOT NULL AND source_queue_id IS NULL;

ALTER TABLE stage_row ADD COLUMN group_name TEXT COLLATE "C";

ALTER TABLE history
  ADD COLUMN ready_at BIGINT,
  ADD COLUMN due_ms BIGINT,
  ADD COLUMN deliver_at BIGINT,
  ADD COLUMN retries BIGINT,
  ADD COLUMN priority BIGINT,
  ADD COLUMN group_name TEXT COLLATE "C",
  ADD COLUMN unique_key TEXT COLLATE "C",
  ADD COLUMN erased_at BIGINT;

-- As in 0001, with the number of scheduled messages.
DROP FUNCTION update_queues(BIGINT[], BIGINT[], BIGINT[]);
CREATE FUNCTION update_queues(ids BIGINT[], counts BIGINT[], sizes BIGINT[], scheduled BIGINT[])
RETURNS SETOF BIGINT LANGUAGE plpgsql AS $$
DECLARE
  slot TEXT;
  place TID;
BEGIN
  FOR at IN 1 .. cardinality(ids) LOOP
    slot := 'phpmq.queue_' || ids[at] % 256;
    place := nullif(current_setting(slot, true), '');
    UPDATE queue SET live_count = counts[at], live_bytes = sizes[at],
        scheduled_count = scheduled[at]
      WHERE ctid = place AND queue_id = ids[at] RETURNING ctid INTO place;
    IF place IS NULL THEN
      UPDATE queue SET live_count = counts[at], live_bytes = sizes[at],
          scheduled_count = scheduled[at]
        WHERE queue_id = ids[at] RETURNING ctid INTO place;
    END IF;
    PERFORM set_config(slot, place::text, false);
  END LOOP;
END
$$;

-- What was published to NAME.retry with a time to live is delivered in NAME after that time.  Until
-- now it waited there, and expired; from now on, it is scheduled in NAME.
CREATE TEMP TABLE retry_queue AS
SELECT queue_id, left(name, -6) AS home_name, created_at, created_by
FROM queue
WHERE name LIKE '_%.retry' AND on_expire IS NULL AND EXISTS (SELECT 1 FROM message
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
  SELECT queue_id, name, nullif((settings::jsonb ->> 'default_ttl_s')::bigint, 0) AS ttl_s FROM queue
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

-- Settled messages for SQL clients, with the columns of the export (docs/reference/columns.md).  Its
-- readers need no rights on the tables.  Bodies have a view of their own, because they need a grant
-- of their own.  To change a view, replace it: DROP would remove the grants.
CREATE VIEW settled_message AS
SELECT
  m."offset",
  m.seq,
  lpad(to_hex(m.seq), 16, '0') || lpad(to_hex(m.token), 16, '0') AS message_id,
  queue.name AS queue,
  m.position,
  CASE m.outcome WHEN 2 THEN 'acked' WHEN 3 THEN 'expired' WHEN 4 THEN 'dead' ELSE 'deleted' END
    AS outcome,
  m.reason,
  to_timestamp(m.published_at / 1000.0) AS published_at,
  to_timestamp(m.first_dispatched_at / 1000.0) AS first_dispatched_at,
  to_timestamp(m.last_dispatched_at / 1000.0) AS last_dispatched_at,
  to_timestamp(m.settled_at / 1000.0) AS settled_at,
  -- on the wall clock as it was then
  CASE WHEN m.deadline_ms IS NOT NULL THEN to_timestamp((m.deadline_ms + coalesce(
    (SELECT step_ms FROM clock_step WHERE from_offset <= m."offset" ORDER BY number DESC LIMIT 1),
    (SELECT step_ms FROM clock_step ORDER BY number LIMIT 1),
    (SELECT value FROM counter WHERE name = 'clock_step_ms'), 0)) / 1000.0) END AS deadline,
  m.ttl_s,
  m.deliveries::INTEGER AS deliveries,
  m.size,
  m.publisher,
  m.consumer,
  m.urn,
  m.trace_id,
  m.meta_id,
  m.attempts,
  to_timestamp(CASE WHEN m.due_ms IS NULL THEN coalesce(m.ready_at, m.published_at) END / 1000.0)
    AS ready_at,
  to_timestamp(m.deliver_at / 1000.0) AS deliver_at,
  ((m.position >> 48) + 128)::INTEGER AS priority,
  coalesce(m.retries, 0)::INTEGER AS retries,
  m.group_name AS "group",
  m.unique_key,
  m.charged::INTEGER AS charged,
  m.source_seq,
  source_queue.name AS source_queue,
  m.source_reason,
  to_timestamp(m.erased_at / 1000.0) AS erased_at,
  (SELECT value FROM meta WHERE name = 'history_id') AS history_id,
  m."offset" AS history_offset
FROM history AS m LEFT JOIN queue ON queue.queue_id = m.queue_id
  LEFT JOIN queue AS source_queue ON source_queue.queue_id = m.source_queue_id;

CREATE VIEW settled_body AS
SELECT m."offset" AS history_offset, content AS body, checksum(seq, content) = m.crc AS is_intact
FROM history AS m JOIN body USING (seq);
