-- name: overwrite_body
-- Overwrites a secret before its row is deleted, because SQLite does not clear deleted bytes.
-- index: INTEGER PRIMARY KEY
UPDATE body SET content = zeroblob(length(content)) WHERE seq = :seq;

-- name: erase_trace
-- Removes a message from the trace index; before its columns.
-- index: trace_place USING PRIMARY KEY
DELETE FROM trace_place WHERE (block, trace_id, seq) IN (
  SELECT seq >> 14, trace_id, seq FROM history WHERE seq = :seq AND trace_id IS NOT NULL);

-- name: quarantined_rows
-- Staged rows that are invalid and will be quarantined.
-- index: INTEGER PRIMARY KEY
SELECT row_id, queue_id, ttl_s, token, urn, trace_id, meta_id, attempts, reason, detail, record_id,
  record, content, group_name
FROM json_each(:spans) AS span CROSS JOIN stage_row
  ON row_id >= json_extract(span.value, '$[0]') AND row_id < json_extract(span.value, '$[1]')
WHERE reason IS NOT NULL ORDER BY row_id;
