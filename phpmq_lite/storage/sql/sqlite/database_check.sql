-- name: inconsistent_index
-- Settled messages that are not in the run for their queue, outcome, offset and number, and
-- messages that are in more than one run.
SELECT (
  SELECT count(*) FROM history AS m NOT INDEXED WHERE "offset" <= placed.upto AND NOT EXISTS (
    SELECT 1 FROM (
      SELECT * FROM history_run
      WHERE block = m."offset" >> 16 AND queue_id = m.queue_id AND outcome = m.outcome
        AND first_offset <= m."offset"
      ORDER BY first_offset DESC LIMIT 1
    )
    WHERE first_offset + length > m."offset" AND first_offset >> 10 = m."offset" >> 10
      AND first_seq <= m.seq AND first_seq >> 12 = m.seq >> 12 AND seq_block = m.seq >> 16
  )
) + abs((
    SELECT count(*) FROM history_run CROSS JOIN history AS m
      ON m."offset" >= first_offset AND m."offset" < first_offset + length
  ) - (SELECT count(*) FROM history NOT INDEXED WHERE "offset" <= placed.upto))
FROM (SELECT coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0) AS upto) AS placed;
