-- A statement for several rows takes an array for each column; its other parameters come first.

-- part: last_offset
-- The newest row of the history always stays.
(SELECT coalesce(max("offset"), 0) FROM history)

-- name: insert_run
-- New messages with consecutive numbers that differ only in queue and content, at their original
-- positions, dispatched at most once.
INSERT INTO message (seq, position, state, deliveries, ttl_s, deadline_ms, published_at,
  first_dispatched_at, last_dispatched_at, charged, publisher, consumer, queue_id, token, size,
  crc)
SELECT $1::bigint + n - 1, $1::bigint + n - 1, $2::bigint, $2::bigint, $3::bigint, $4::bigint,
  $5::bigint, $6::bigint, $6::bigint, 0, $7::bigint, $8::bigint, queue_id, token, size, crc
FROM unnest($9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[])
  WITH ORDINALITY AS given (queue_id, token, size, crc, n);

-- name: insert_enveloped
INSERT INTO message ({envelope_columns})
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
  $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[],
  $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::text[],
  $18::text[], $19::text[], $20::bigint[]);

-- name: insert_with_source
INSERT INTO message ({all_columns})
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
  $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[],
  $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::text[],
  $18::text[], $19::text[], $20::bigint[], $21::bigint[], $22::bigint[], $23::text[]);

-- name: insert_bodies
INSERT INTO body (seq, content)
SELECT $1::bigint + n - 1, content FROM unnest($2::bytea[]) WITH ORDINALITY AS given (content, n);

-- name: dispatch_messages
UPDATE message SET state = 1, deliveries = deliveries + 1, consumer = given.consumer, last_dispatched_at = given.at_ms,
  first_dispatched_at = coalesce(first_dispatched_at, given.at_ms)
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS given (seq, consumer, at_ms)
WHERE message.seq = given.seq;

-- name: update_messages
UPDATE message SET queue_id = given.queue_id, position = given.position, state = given.state,
  ttl_s = given.ttl_s, deadline_ms = given.deadline_ms,
  first_dispatched_at = given.first_dispatched_at, last_dispatched_at = given.last_dispatched_at,
  deliveries = given.deliveries, charged = given.charged, consumer = given.consumer
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[])
  AS given (seq, queue_id, position, state, ttl_s, deadline_ms, first_dispatched_at,
    last_dispatched_at, deliveries, charged, consumer)
WHERE message.seq = given.seq;

-- name: settle_messages
-- History rows for settled messages in seq order, with the next offsets.
INSERT INTO history ("offset", outcome, reason, settled_at, {history_columns})
SELECT {last_offset} + row_number() OVER (ORDER BY seq), $1::bigint, $2::text, $3::bigint,
  {history_columns} FROM message WHERE seq = ANY ($4::bigint[]) ORDER BY seq;

-- name: settle_run
INSERT INTO history ("offset", outcome, reason, settled_at, {history_columns})
SELECT {last_offset} + row_number() OVER (ORDER BY seq), $1::bigint, $2::text, $3::bigint,
  {history_columns} FROM message WHERE seq BETWEEN $4 AND $5 ORDER BY seq;

-- name: settle_dispatched
-- Like settle_messages, for stored messages that this batch both dispatched and settled.
INSERT INTO history ("offset", outcome, reason, settled_at, {history_columns})
SELECT {last_offset} + row_number() OVER (ORDER BY message.seq), $1::bigint, $2::text, $3::bigint,
  message.seq, token, queue_id, position, ttl_s, deadline_ms, published_at,
  coalesce(first_dispatched_at, given.at_ms), given.at_ms, deliveries + 1, charged, size, crc, publisher,
  given.consumer, urn, trace_id, meta_id, attempts, source_seq, source_queue_id, source_reason
FROM unnest($4::bigint[], $5::bigint[], $6::bigint[]) AS given (seq, consumer, at_ms)
  JOIN message ON message.seq = given.seq
ORDER BY message.seq;

-- name: settle_dispatched_run
INSERT INTO history ("offset", outcome, reason, settled_at, {history_columns})
SELECT {last_offset} + row_number() OVER (ORDER BY seq), $3::bigint, $4::text, $5::bigint,
  message.seq, token, queue_id, position, ttl_s, deadline_ms, published_at,
  coalesce(first_dispatched_at, $2::bigint), $2::bigint, deliveries + 1, charged, size, crc, publisher,
  $1::bigint, urn, trace_id, meta_id, attempts, source_seq, source_queue_id, source_reason
FROM message WHERE seq BETWEEN $6 AND $7 ORDER BY seq;

-- name: insert_event
INSERT INTO event_entry (seq, at_ms, kind, detail)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]);

-- name: insert_receipt
INSERT INTO receipt (n, queue_id, seq, at_ms, key_bytes, keys)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],
  $6::bytea[]);

-- name: update_queue
SELECT FROM update_queues($1::bigint[], $2::bigint[], $3::bigint[]);

-- name: insert_client
INSERT INTO client (client, kind, address, opened_at)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[]);

-- name: set_counter
SELECT FROM change_counter(?::text, ?::bigint, false);

-- name: add_counter
SELECT FROM change_counter(?::text, ?::bigint, true);

-- name: client_records
SELECT record.source_seq, record.seq, record.token, record.size
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[])
  AS given (source_seq, queue_id, other_queue_id, publisher)
JOIN message AS record ON record.seq IN (
  SELECT seq FROM (
    SELECT newest.seq FROM message AS newest
    WHERE newest.source_seq = given.source_seq AND newest.queue_id = given.queue_id
    ORDER BY newest.seq DESC LIMIT 8) AS newest_few
  UNION
  SELECT seq FROM (
    SELECT newest.seq FROM message AS newest
    WHERE newest.source_seq = given.source_seq AND newest.queue_id = given.other_queue_id
    ORDER BY newest.seq DESC LIMIT 8) AS newest_few
  UNION
  SELECT seq FROM (
    SELECT newest.seq FROM message AS newest
    WHERE newest.source_seq = given.source_seq AND newest.publisher = given.publisher
    ORDER BY newest.seq DESC LIMIT 8) AS newest_few);

-- name: delete_forgotten_queues
DELETE FROM queue WHERE settings = '{"removed": true}'
  AND NOT EXISTS (SELECT 1 FROM history WHERE history.queue_id = queue.queue_id)
  AND queue_id NOT IN (SELECT queue_id FROM receipt)
  AND queue_id NOT IN (SELECT queue_id FROM stage_part)
  AND queue_id NOT IN (SELECT queue_id FROM subscription);

-- name: overwrite_body
-- Overwrites a secret before its row is deleted; VACUUM removes the old version.
UPDATE body SET content = decode(repeat('00', length(content)), 'hex') WHERE seq = :seq;

-- name: insert_staged_rows
INSERT INTO stage_row (row_id, queue_id, ttl_s, token, urn, trace_id, meta_id, attempts, reason,
  detail, record_id, record, content)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[],
  $6::text[], $7::text[], $8::bigint[], $9::text[], $10::text[], $11::bytea[], $12::bytea[],
  $13::bytea[]);

-- name: quarantined_rows
SELECT row_id, queue_id, ttl_s, urn, trace_id, meta_id, attempts, reason, detail, record_id,
  record, content
FROM jsonb_array_elements(:spans::jsonb) AS span JOIN stage_row
  ON row_id >= (span.value ->> 0)::bigint AND row_id < (span.value ->> 1)::bigint
WHERE reason IS NOT NULL ORDER BY row_id;

-- name: insert_claims
INSERT INTO claim (subscription_id, claim, seq, claimed_at)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]);

-- name: create_history_id
INSERT INTO meta (name, value) VALUES ('history_id', replace(gen_random_uuid()::text, '-', ''))
ON CONFLICT (name) DO NOTHING;
