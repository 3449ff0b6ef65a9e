-- Consistency checks for `verify`, backups and drills.  Each check counts violations.  Tables are
-- read without indexes that might hide rows.

-- name: counts
-- Number of rows in each table.
-- columns: queues, live messages, settled messages, bodies
SELECT (SELECT count(*) FROM queue), (SELECT count(*) FROM message NOT INDEXED),
  (SELECT count(*) FROM history NOT INDEXED), (SELECT count(*) FROM body);

-- name: ends
-- Highest seq of a body and highest offset; 0 if there are no rows.
-- columns: seq, offset
SELECT coalesce((SELECT max(seq) FROM body), 0),
  coalesce((SELECT max("offset") FROM history NOT INDEXED), 0);

-- name: alive_bodies
-- Live messages whose body is missing, has the wrong length or has a wrong checksum.
-- columns: seq
SELECT message.seq FROM message NOT INDEXED LEFT JOIN body USING (seq)
WHERE content IS NULL OR length(content) <> size OR checksum(message.seq, content) <> crc;

-- name: settled_bodies
-- Settled messages whose body has the wrong length or checksum; removed bodies are ignored.
-- columns: seq, is_known (the message died because of the damage)
SELECT history.seq, coalesce(reason = 'crc', false) FROM history NOT INDEXED JOIN body USING (seq)
WHERE length(content) <> size OR checksum(history.seq, content) <> crc;

-- name: inconsistent_queues
-- Queues whose counts differ from their messages.
SELECT count(*) FROM queue LEFT JOIN (
  SELECT queue_id, count(*) AS messages, sum(size) AS bytes FROM message NOT INDEXED
  GROUP BY queue_id
) AS counted USING (queue_id)
WHERE live_count <> coalesce(messages, 0) OR live_bytes <> coalesce(bytes, 0);

-- name: inconsistent_scheduled
-- Queues whose count of scheduled messages differs from their messages.
SELECT count(*) FROM queue LEFT JOIN (
  SELECT queue_id, count(*) AS scheduled FROM message NOT INDEXED WHERE state = 6 GROUP BY queue_id
) AS counted USING (queue_id)
WHERE scheduled_count <> coalesce(scheduled, 0);

-- name: duplicate_keys
-- Live messages with the unique key of another one; in dead-letter records, a key has no effect.
SELECT CAST(coalesce(sum(messages - 1), 0) AS bigint) FROM (
  SELECT count(*) AS messages FROM message NOT INDEXED
  WHERE unique_key IS NOT NULL AND source_queue_id IS NULL GROUP BY queue_id, unique_key
) AS counted;

-- name: duplicate_heads
-- Groups of which more than one message was dispatched and has not left the queue.
SELECT count(*) FROM (
  SELECT 1 FROM message NOT INDEXED WHERE head_since IS NOT NULL
  GROUP BY queue_id, group_name HAVING count(*) > 1
) AS counted;

-- name: missing_queues
-- Live and settled messages of queues that do not exist.
SELECT (SELECT count(*) FROM message NOT INDEXED WHERE queue_id NOT IN (SELECT queue_id FROM queue))
  + (SELECT count(*) FROM history NOT INDEXED WHERE queue_id NOT IN (SELECT queue_id FROM queue));

-- name: duplicate_messages
-- Messages that exist twice, either live and settled or settled twice.
SELECT (SELECT count(*) FROM message NOT INDEXED JOIN history USING (seq))
  + (SELECT count(seq) - count(DISTINCT seq) FROM history NOT INDEXED);

-- name: unassigned_numbers
-- Rows with a number that has not been assigned yet; a position has it below the priority.
SELECT (SELECT count(*) FROM message NOT INDEXED, line
    WHERE seq >= next_number OR position & 281474976710655 >= next_number)
  + (SELECT count(*) FROM history NOT INDEXED, line WHERE seq >= next_number);

-- name: missing_offsets
-- Offsets missing above both fronts of the history.
SELECT coalesce((
  SELECT max("offset") - front.lo + 1 - count(*) FROM history NOT INDEXED, (
    SELECT max(value) AS lo FROM (
      SELECT 1 AS value
      UNION ALL SELECT value FROM counter WHERE name IN ('history_lo', 'deleted_lo')
    ) AS fronts
  ) AS front
  WHERE "offset" >= front.lo GROUP BY front.lo
), 0);

-- name: inconsistent_totals
-- History totals that differ from the history rows.
SELECT CAST(live.rows <> coalesce((SELECT value FROM counter WHERE name = 'history_rows'), 0) AS int)
  + CAST(live.bytes <> coalesce((SELECT value FROM counter WHERE name = 'history_bytes'), 0) AS int)
  + CAST(live.deleted <> coalesce((SELECT value FROM counter WHERE name = 'deleted_rows'), 0) AS int)
  + CAST(
    live.deleted_bytes <> coalesce((SELECT value FROM counter WHERE name = 'deleted_bytes'), 0) AS int)
FROM (
  SELECT count(*) FILTER (WHERE outcome <> 5) AS rows,
    coalesce(sum(size) FILTER (WHERE outcome <> 5), 0) AS bytes,
    count(*) FILTER (WHERE outcome = 5) AS deleted,
    coalesce(sum(size) FILTER (WHERE outcome = 5), 0) AS deleted_bytes
  FROM history NOT INDEXED
  WHERE "offset" <= coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0)
) AS live;

-- name: invalid_claims
-- Claims on messages that are not dispatched or do not exist.
SELECT count(*) FROM claim LEFT JOIN message USING (seq) WHERE coalesce(state, 0) <> 1;
