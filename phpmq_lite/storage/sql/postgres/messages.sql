-- part: preview
nullif(substr(b.content, 1, 480), '')

-- part: state_after
-- twin: state_before
(
    SELECT * FROM message
    WHERE state = STATE AND :states::bigint >> STATE & 1 <> 0
      AND queue_id = :queue_id AND position {> | <} :position
    ORDER BY position {ASC | DESC} LIMIT :limit
  )

-- name: messages_after
-- twin: messages_before
-- SQLite would take up to twice as long for this form, of which it sorts the result.
-- index: message_place
-- index: message_held
-- index: message_scheduled
-- index: message_blocked
SELECT {live_columns}
FROM (
  {each state_{after | before} UNION ALL}
  ORDER BY position {ASC | DESC} LIMIT :limit
) AS m
{joins}
ORDER BY m.position {ASC | DESC};

-- part: older_rows
-- twin: newer_rows
-- Offsets of a queue's settled messages with one outcome; the page reads other columns.
SELECT "offset" FROM history
    WHERE queue_id = :queue_id AND "offset" {< | >} :start AND "offset" {>= | <=} :stop AND outcome

-- part: newest
-- twin: oldest
ORDER BY "offset" {DESC | ASC} LIMIT :limit

-- name: queue_older
-- twin: queue_newer
-- Settled messages of a queue, newest or oldest first.  The index is read by outcome.
-- index: history_place
SELECT {settled_columns}
FROM history AS m
{joins}
WHERE m."offset" = ANY (ARRAY(
  SELECT "offset" FROM (
    ({{older_rows | newer_rows}} = 2 {{newest | oldest}})
    UNION ALL
    ({{older_rows | newer_rows}} = 3 {{newest | oldest}})
    UNION ALL
    ({{older_rows | newer_rows}} = 4 {{newest | oldest}})
    UNION ALL
    ({{older_rows | newer_rows}} = 5 {{newest | oldest}})
  ) AS place
  {{newest | oldest}}
))
ORDER BY m."offset" {DESC | ASC};

-- name: queue_outcome_older
-- twin: queue_outcome_newer
-- index: history_place
SELECT {settled_columns}
FROM history AS m
{joins}
WHERE m."offset" = ANY (ARRAY(
  SELECT "offset" FROM (
    ({{older_rows | newer_rows}} = :outcome {{newest | oldest}})
  ) AS place
  {{newest | oldest}}
))
ORDER BY m."offset" {DESC | ASC};

-- part: place_of_block
position('"dead_letter"'::bytea IN content)

-- part: state_dead_letters
(
    SELECT * FROM message
    WHERE state = STATE AND queue_id = :queue_id AND position < :before
    ORDER BY position DESC LIMIT :limit
  )

-- name: newest_dead_letters
-- columns: position, seq, origin (queue_id), urn, reason, published_at, size, whether it died
--   again after a redrive, block
-- index: message_place
-- index: message_held
-- index: message_scheduled
-- index: message_blocked
{dead_letter}
FROM (
  {each state_dead_letters UNION ALL}
  ORDER BY position DESC LIMIT :limit
) AS m
ORDER BY m.position DESC;

-- name: body_part
SELECT length(content), substr(content, least(:start, 2147483646)::int + 1, :size::int)
FROM body WHERE seq = :seq;

-- name: staged_tokens
-- Tokens of staged rows with certain traces.
-- parameters: traces (a JSON array)
-- columns: token
SELECT DISTINCT stage.token FROM stage_row JOIN stage ON stage_id = row_id >> 17
WHERE stage.token IS NOT NULL AND trace_id IN (SELECT jsonb_array_elements_text(CAST(:traces AS jsonb)));
