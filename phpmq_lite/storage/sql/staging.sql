-- Rows that wait for their publish.

-- name: insert_stage
-- parameters: stage_id, token, created_at, until_ms
INSERT INTO stage (stage_id, token, created_at, until_ms, "rows", bytes, is_whole)
VALUES (:stage_id, :token, :created_at, :until_ms, 0, 0, 0);

-- name: update_stage
-- parameters: rows, bytes, is_whole, stage_id
-- index: INTEGER PRIMARY KEY
UPDATE stage SET "rows" = :rows, bytes = :bytes, is_whole = :is_whole WHERE stage_id = :stage_id;

-- name: update_stage_queue
-- parameters: stage_id, queue_id, rows, bytes, bad_rows, bad_bytes, least_ttl_s, policy
INSERT INTO stage_part
  (stage_id, queue_id, "rows", bytes, bad_rows, bad_bytes, least_ttl_s, policy)
VALUES (:stage_id, :queue_id, :rows, :bytes, :bad_rows, :bad_bytes, :least_ttl_s, :policy)
ON CONFLICT (stage_id, queue_id) DO UPDATE SET "rows" = excluded."rows", bytes = excluded.bytes,
  bad_rows = excluded.bad_rows, bad_bytes = excluded.bad_bytes,
  least_ttl_s = excluded.least_ttl_s, policy = excluded.policy;

-- name: insert_rows
-- rows: row_id, queue_id, ttl_s, token, urn, trace_id, meta_id, attempts, reason, detail,
--   record_id, record, content
INSERT INTO stage_row (row_id, queue_id, ttl_s, token, urn, trace_id, meta_id, attempts, reason,
  detail, record_id, record, content)
VALUES {rows:(?,?,?,?,?,?,?,?,?,?,?,?,?)};

-- name: quarantined_rows
-- What may not reach a consumer.
-- parameters: spans
-- columns: row_id, queue_id, ttl_s, urn, trace_id, meta_id, attempts, reason, detail, record_id,
--   record, content
-- index: INTEGER PRIMARY KEY
SELECT row_id, queue_id, ttl_s, urn, trace_id, meta_id, attempts, reason, detail, record_id,
  record, content
FROM json_each(:spans) AS span CROSS JOIN stage_row
  ON row_id >= json_extract(span.value, '$[0]') AND row_id < json_extract(span.value, '$[1]')
WHERE reason IS NOT NULL ORDER BY row_id;

-- name: publish_messages
-- New messages at the end of their queues, their numbers in the order of the rows.
-- parameters: offset, at_ms, steady_ms, publisher, first_row, end_row
-- index: INTEGER PRIMARY KEY
INSERT INTO message (seq, token, queue_id, position, state, ttl_s, deadline_ms, published_at,
  deliveries, charged, size, crc, publisher, urn, trace_id, meta_id, attempts)
SELECT row_id + :offset, token, queue_id, row_id + :offset, 0, ttl_s, :steady_ms + ttl_s * 1000,
  :at_ms, 0, 0, length(content), checksum(row_id + :offset, content), :publisher,
  urn, trace_id, meta_id, attempts
FROM stage_row WHERE row_id >= :first_row AND row_id < :end_row AND reason IS NULL ORDER BY row_id;

-- name: publish_bodies
-- parameters: offset, first_row, end_row
-- index: INTEGER PRIMARY KEY
INSERT INTO body (seq, content) SELECT row_id + column1, content
FROM (VALUES (:offset, :first_row, :end_row)) AS given CROSS JOIN stage_row
  ON row_id >= column2 AND row_id < column3
WHERE reason IS NULL ORDER BY row_id;

-- name: drop_stage
-- Published, or not wanted: its rows are removed in slices.
-- parameters: stage_id
-- index: INTEGER PRIMARY KEY
UPDATE stage SET token = NULL WHERE stage_id = :stage_id;

-- name: seal_stage
-- The rest of a publish that is done in part.
-- parameters: token, until_ms, stage_id
-- index: INTEGER PRIMARY KEY
UPDATE stage SET token = :token, until_ms = :until_ms WHERE stage_id = :stage_id;

-- name: drop_stage_queues
-- parameters: stage_id
-- index: PRIMARY KEY
DELETE FROM stage_part WHERE stage_id = :stage_id;

-- name: record_version
-- parameters: app_id, version, at_ms, rows, owner, used_ms, is_single
INSERT INTO published (app_id, version, at_ms, "rows", owner, used_ms, single_use)
VALUES (:app_id, :version, :at_ms, :rows, :owner, :used_ms, :is_single)
ON CONFLICT (app_id) DO UPDATE SET version = excluded.version, at_ms = excluded.at_ms,
  "rows" = excluded."rows", owner = excluded.owner, used_ms = excluded.used_ms,
  single_use = excluded.single_use;

-- name: record_use
-- A repeated publish, or another owner.
-- parameters: owner, used_ms, app_id
-- index: PRIMARY KEY
UPDATE published SET owner = :owner, used_ms = :used_ms WHERE app_id = :app_id;

-- name: forget_version
-- parameters: app_id
-- index: PRIMARY KEY
DELETE FROM published WHERE app_id = :app_id;

-- name: drop_open
-- At start: who was staging is gone.
UPDATE stage SET token = NULL WHERE is_whole = 0 AND token IS NOT NULL;

-- name: drop_parts_of_dropped
-- At start, after drop_open.
DELETE FROM stage_part WHERE stage_id IN (SELECT stage_id FROM stage WHERE token IS NULL);

-- name: stages
-- At start, oldest first.
-- columns: stage_id, token, until_ms, rows, bytes
SELECT stage_id, token, until_ms, "rows", bytes FROM stage WHERE token IS NOT NULL
ORDER BY stage_id;

-- name: parts
-- At start.
-- columns: as in the table
SELECT stage_id, queue_id, "rows", bytes, bad_rows, bad_bytes, least_ttl_s, policy
FROM stage_part;

-- name: next_stage
-- At start: the number of the next token.
SELECT coalesce(max(stage_id), 0) + 1 FROM stage;

-- name: versions
-- At start, those that were used longest ago first.
-- columns: app_id, version, owner, used_ms, single_use
SELECT app_id, version, owner, used_ms, single_use FROM published ORDER BY used_ms, app_id;

-- name: app_ids
-- In the order of the names, without those of a single publish.
-- parameters: after (app_id, exclusive); limit
-- columns: app_id, owner, version, at_ms, rows
-- index: PRIMARY KEY
SELECT app_id, owner, version, at_ms, "rows" FROM published
WHERE app_id > :after AND NOT single_use ORDER BY app_id LIMIT :limit;

-- name: next_dropped
-- A token whose rows are to be removed.
-- columns: stage_id, or NULL
-- index: sqlite_autoindex_stage_1
SELECT min(stage_id) FROM stage WHERE token IS NULL;

-- name: remove_rows
-- parameters: row_id from (inclusive), to (exclusive); limit
-- index: INTEGER PRIMARY KEY
DELETE FROM stage_row WHERE row_id IN (
  SELECT row_id FROM stage_row WHERE row_id >= ? AND row_id < ? ORDER BY row_id LIMIT ?);

-- name: remove_stage
-- parameters: stage_id
-- index: INTEGER PRIMARY KEY
DELETE FROM stage WHERE stage_id = ?;
