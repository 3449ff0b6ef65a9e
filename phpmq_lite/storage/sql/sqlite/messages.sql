-- part: preview
-- substr reads the complete value before truncating it, so large bodies use body_part.
CASE WHEN m.size <= 65536 THEN substr(b.content, 1, 480)
    WHEN b.seq IS NOT NULL THEN body_part(m.seq, 0, 480) END

-- part: state_after
-- twin: state_before
SELECT {live_columns}
FROM message AS m
{joins}
WHERE m.state = STATE AND :states >> STATE & 1
  AND m.queue_id = :queue_id AND m.position {> | <} :position

-- name: messages_after
-- twin: messages_before
-- A page of a queue's messages after or before a position, the nearest first.
-- parameters: queue_id; position (exclusive); states (a set of bits); limit
-- columns: those of messages.MessageRow
-- index: message_place
-- index: message_held
-- index: message_scheduled
-- index: message_blocked
{each state_{after | before} UNION ALL}
ORDER BY 6 {ASC | DESC}  -- the position
LIMIT :limit;

-- part: indexed_upto
-- Up to this offset, settled messages are in history_run; the short tail above is not.
coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0)

-- part: older_rows
-- twin: newer_rows
-- Offsets of a queue's settled messages; the page reads other columns.  Blocks are each found from
-- the previous block.
SELECT m."offset" AS place FROM history_run CROSS JOIN history AS m
      ON m."offset" {>= max(first_offset, :stop) | > max(first_offset - 1, :start)}
        AND m."offset" < min(first_offset + length, {:start | :stop + 1})
    WHERE history_run.queue_id = :queue_id AND block IN (
      WITH RECURSIVE near (block) AS (
        SELECT (
          SELECT block FROM history_run WHERE block >= {:stop | :start} >> 16 ORDER BY block LIMIT 1)
        UNION ALL
        SELECT (SELECT block FROM history_run WHERE block > near.block ORDER BY block LIMIT 1)
        FROM near WHERE near.block < {:start | :stop} >> 16
      )
      SELECT block FROM near WHERE block IS NOT NULL
    ) AND {first_offset < :start AND first_offset + length > :stop
      | first_offset >= :start >> 10 << 10 AND first_offset + length - 1 > :start}
      AND history_run.outcome

-- part: newest
-- twin: oldest
ORDER BY block {DESC | ASC}, first_offset {DESC | ASC}, m."offset" {DESC | ASC} LIMIT :limit

-- part: from_stop
-- No run crosses a multiple of 1,024 offsets.
first_offset >= :stop >> 10 << 10

-- part: from_acked
-- If acked messages fill the page, messages that are older than these are not on it.
first_offset >= max(:stop, (
        SELECT coalesce(min(place), 0) * (count(*) >= :limit) FROM acked
      )) >> 10 << 10

-- part: upto_acked
first_offset <= min(:stop, (
        SELECT CASE WHEN count(*) >= :limit THEN max(place) ELSE :stop END FROM acked
      ))

-- part: older_tail
-- twin: newer_tail
SELECT "offset" AS place FROM history NOT INDEXED
    WHERE queue_id = :queue_id AND {
      "offset" < :start AND "offset" > max(:stop - 1, {indexed_upto})
      | "offset" > max(:start, {indexed_upto}) AND "offset" <= :stop}

-- name: queue_older
-- twin: queue_newer
-- Settled messages of a queue, newest or oldest first.  The index is read by outcome, then the tail.
-- parameters: queue_id; start (exclusive), stop (inclusive): offsets; limit
-- columns: those of messages.MessageRow
-- index: history_run USING PRIMARY KEY
SELECT {settled_columns}
FROM history AS m
{joins}
WHERE m."offset" IN (
  WITH acked AS MATERIALIZED (
    {{older_rows | newer_rows}} = 2 AND {{from_stop} | first_offset <= :stop} {{newest | oldest}}
  )
  SELECT place FROM (
    SELECT * FROM acked
    UNION ALL
    SELECT * FROM ({{older_rows | newer_rows}} = 3 AND {{from_acked | upto_acked}} {{newest | oldest}})
    UNION ALL
    SELECT * FROM ({{older_rows | newer_rows}} = 4 AND {{from_acked | upto_acked}} {{newest | oldest}})
    UNION ALL
    SELECT * FROM ({{older_rows | newer_rows}} = 5 AND {{from_acked | upto_acked}} {{newest | oldest}})
    UNION ALL
    SELECT * FROM ({{older_tail | newer_tail}}
      ORDER BY "offset" {DESC | ASC} LIMIT :limit)
  )
  ORDER BY place {DESC | ASC} LIMIT :limit
)
ORDER BY m."offset" {DESC | ASC};

-- name: queue_outcome_older
-- twin: queue_outcome_newer
-- Settled messages of a queue with one outcome, before or after an offset, the nearest first.
-- parameters: queue_id; outcome; start (exclusive), stop (inclusive): offsets; limit
-- columns: those of messages.MessageRow
-- index: history_run USING PRIMARY KEY
SELECT {settled_columns}
FROM history AS m
{joins}
WHERE m."offset" IN (
  SELECT place FROM (
    SELECT * FROM (
      {{older_rows | newer_rows}} = :outcome AND {{from_stop} | first_offset <= :stop} {{newest | oldest}}
    )
    UNION ALL
    SELECT * FROM ({{older_tail | newer_tail}} AND outcome = :outcome
      ORDER BY "offset" {DESC | ASC} LIMIT :limit)
  )
  ORDER BY place {DESC | ASC} LIMIT :limit
)
ORDER BY m."offset" {DESC | ASC};

-- part: place_of_block
instr(content, CAST('"dead_letter"' AS BLOB))

-- part: state_dead_letters
{dead_letter}
FROM message AS m
WHERE m.state = STATE AND m.queue_id = :queue_id AND m.position < :before

-- name: newest_dead_letters
-- The newest dead letters in one queue, with the beginning of their dead_letter block.
-- parameters: queue_id; before (position, exclusive); limit
-- columns: position, seq, origin (queue_id), urn, reason, published_at, size, 1 if it died again
--   after a redrive, block
-- index: message_place
-- index: message_held
-- index: message_scheduled
-- index: message_blocked
{each state_dead_letters UNION ALL}
ORDER BY 1 DESC
LIMIT :limit;

-- name: body_part
-- Size of a body and one part of it.
-- parameters: seq; start, size (bytes)
-- columns: length of the whole body, the part
SELECT length(content), body_part(seq, :start, :size) FROM body WHERE seq = :seq;

-- name: staged_tokens
-- Tokens of staged rows with certain traces.
-- parameters: traces (a JSON array)
-- columns: token
SELECT DISTINCT stage.token FROM stage_row JOIN stage ON stage_id = row_id >> 17
WHERE stage.token IS NOT NULL AND trace_id IN (SELECT value FROM json_each(:traces));
