-- name: overwrite_body
-- Overwrites a secret before its row is deleted; VACUUM removes the old version.
UPDATE body SET content = decode(repeat('00', length(content)), 'hex') WHERE seq = :seq;

-- name: erase_trace
-- Removes a message from the trace index, which is the column's own.
-- index: history_seq
UPDATE history SET trace_id = NULL WHERE seq = :seq;

-- name: quarantined_rows
SELECT row_id, queue_id, ttl_s, token, urn, trace_id, meta_id, attempts, reason, detail, record_id,
  record, content, group_name
FROM jsonb_array_elements(:spans::jsonb) AS span JOIN stage_row
  ON row_id >= (span.value ->> 0)::bigint AND row_id < (span.value ->> 1)::bigint
WHERE reason IS NOT NULL ORDER BY row_id;
