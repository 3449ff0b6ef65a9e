-- part: only_urns
AND m.urn = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(CAST(:urns AS text) AS jsonb))))

-- part: only_traces
AND m.trace_id = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(CAST(:traces AS text) AS jsonb))))

-- part: queue_range
-- index: history_place
FROM history AS m {join}
WHERE m.queue_id = ANY (ids(:queue_ids)) AND m.outcome = ANY (ids(:outcomes))
  AND m."offset" > :lo AND m."offset" <= :hi

-- name: trace_offsets
-- index: history_trace
SELECT m."offset" FROM history AS m
WHERE m."offset" > CAST(:lo AS bigint) AND m."offset" <= CAST(:hi AS bigint) {only_traces}
ORDER BY m."offset" LIMIT CAST(:limit AS bigint);

-- part: column_body
(SELECT content FROM body WHERE body.seq = m.seq)
