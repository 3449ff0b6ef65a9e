-- part: preview
nullif(substr(b.content, 1, 480), '')

-- name: messages_after
-- twin: messages_before
-- SQLite would take up to twice as long for this form, of which it sorts the result.
-- index: message_place
-- index: message_held
SELECT {live_columns}
FROM (
  (
    SELECT * FROM message
    WHERE state = 0 AND coalesce(:state::bigint, 0) = 0
      AND queue_id = :queue_id AND position {> | <} :position
    ORDER BY position {ASC | DESC} LIMIT :limit
  )
  UNION ALL
  (
    SELECT * FROM message
    WHERE state = 1 AND coalesce(:state::bigint, 1) = 1
      AND queue_id = :queue_id AND position {> | <} :position
    ORDER BY position {ASC | DESC} LIMIT :limit
  )
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

-- name: dead_letter_queues
SELECT queue_id, name, live_count FROM queue
WHERE (name LIKE '%.dlq' OR name = ANY (ARRAY(SELECT jsonb_array_elements_text(:names::jsonb))))
  AND live_count > 0
ORDER BY name;

-- part: dead_letter
SELECT
  m.position, m.seq, m.source_queue_id, m.urn, m.source_reason, m.published_at, m.size,
  EXISTS (
    SELECT 1 FROM event AS e
    WHERE e.seq = m.source_seq AND e.kind = 'redrive'
      AND e.detail < lpad(to_hex(m.source_seq), 16, '0') COLLATE "C"
  ),
  CASE WHEN m.size <= 65536 THEN (
    SELECT substr(content, nullif(position('"dead_letter"'::bytea IN content), 0), 400)
    FROM body WHERE body.seq = m.seq
  ) END

-- name: newest_dead_letters
-- columns: position, seq, origin (queue_id), urn, reason, published_at, size, whether it died
--   again after a redrive, block
-- index: message_place
-- index: message_held
{dead_letter}
FROM (
  (
    SELECT * FROM message
    WHERE state = 0 AND queue_id = :queue_id AND position < :before
    ORDER BY position DESC LIMIT :limit
  )
  UNION ALL
  (
    SELECT * FROM message
    WHERE state = 1 AND queue_id = :queue_id AND position < :before
    ORDER BY position DESC LIMIT :limit
  )
  ORDER BY position DESC LIMIT :limit
) AS m
ORDER BY m.position DESC;

-- name: body_part
SELECT length(content), substr(content, least(:start, 2147483646)::int + 1, :size::int)
FROM body WHERE seq = :seq;
