-- part: only_urns
AND m.urn IN (SELECT value FROM json_each(:urns))

-- part: only_traces
AND m.trace_id IN (SELECT value FROM json_each(:traces))

-- part: placed
-- Up to this offset, history_run and trace_place have the messages; the short tail is not indexed.
coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0)

-- part: queue_range
-- Settled messages in certain queues within a range of at most 65,536 offsets, from the runs that
-- reach into it.  No run crosses a multiple of 1,024 offsets.
-- index: history_run USING PRIMARY KEY
FROM (
  SELECT max(first_offset, :lo + 1) AS low, min(first_offset + length - 1, :hi) AS high
  FROM history_run
  WHERE block IN ((:lo + 1) >> 16, :hi >> 16)
    AND queue_id IN (SELECT value FROM json_each(:queue_ids))
    AND outcome IN (SELECT value FROM json_each(:outcomes))
    AND first_offset >= (:lo + 1) >> 10 << 10 AND first_offset <= :hi
    AND first_offset + length - 1 > :lo
  UNION ALL
  SELECT max(:lo, {placed}) + 1, :hi
) AS span CROSS JOIN history AS m ON m."offset" >= span.low AND m."offset" <= span.high {join}
WHERE m.queue_id IN (SELECT value FROM json_each(:queue_ids))
  AND m.outcome IN (SELECT value FROM json_each(:outcomes))

-- name: trace_offsets
-- The first :limit settled messages with certain traces.
-- parameters: traces (a JSON array); lo, hi (offsets); limit
-- columns: offset
-- index: trace_place USING PRIMARY KEY
-- index: history_seq
WITH RECURSIVE near (block) AS (
  SELECT min(block) FROM trace_place
  UNION ALL
  SELECT (SELECT block FROM trace_place WHERE block > near.block ORDER BY block LIMIT 1)
  FROM near WHERE near.block IS NOT NULL
)
SELECT "offset" FROM (
  SELECT m."offset" FROM trace_place CROSS JOIN history AS m INDEXED BY history_seq
    ON m.seq = trace_place.seq
  WHERE trace_place.block IN (SELECT block FROM near)
    AND trace_place.trace_id IN (SELECT value FROM json_each(:traces))
    AND m."offset" > :lo AND m."offset" <= min(:hi, {placed})
  UNION ALL
  SELECT "offset" FROM history NOT INDEXED
  WHERE "offset" > max(:lo, {placed}) AND "offset" <= :hi
    AND trace_id IN (SELECT value FROM json_each(:traces))
) ORDER BY 1 LIMIT :limit;

-- part: column_body
(SELECT CAST(content AS BLOB) FROM body WHERE body.seq = m.seq)
