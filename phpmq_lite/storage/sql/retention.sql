-- Removes the oldest rows: history (from two fronts, with bodies and events), receipts, closed
-- connections, audit rows and rows of dropped stages.  Rows to remove are passed as a JSON list,
-- so that one statement can remove any number of rows.

-- name: clock_steps
-- columns: from_offset, step_ms
SELECT from_offset, step_ms FROM clock_step ORDER BY number;

-- name: next_dropped_stage
-- The next stage whose rows must be removed.
-- columns: stage_id, or NULL
-- index of SQLite: sqlite_autoindex_stage_1
SELECT min(stage_id) FROM stage WHERE token IS NULL;

-- name: delete_staged_rows
-- parameters: row_id from (inclusive), to (exclusive); limit
-- index: PRIMARY KEY
DELETE FROM stage_row WHERE row_id IN (
  SELECT row_id FROM stage_row WHERE row_id >= ? AND row_id < ? ORDER BY row_id LIMIT ?);

-- name: delete_stage
-- parameters: stage_id
-- index: PRIMARY KEY
DELETE FROM stage WHERE stage_id = ?;

-- name: history_fronts
-- Positions of the fronts.
-- columns: name, value
SELECT 'history_lo' AS name, coalesce(counter_value('history_lo'), 0) AS value
UNION ALL SELECT 'history_front', coalesce(counter_value('history_front'), 0)
UNION ALL SELECT 'deleted_lo', coalesce(counter_value('deleted_lo'), 0);

-- part: removable
-- Only indexed rows count.  The newest row stays, because the next offset is derived from it.
"offset" <= coalesce((SELECT counter_value('placed_upto')), 0)
  AND "offset" < (SELECT max("offset") FROM history)

-- name: next_settled
-- twin: next_deleted
-- The next rows in order, or those of deleted messages; is_passed marks rows of the other front.
-- parameters: lo (offset, inclusive); limit
-- columns: offset, seq, size, settled_at, is_passed
-- index: {PRIMARY KEY | history_unusual}
SELECT "offset", seq, size, settled_at, {outcome = 5 | 0} FROM history
WHERE {"offset" >= :lo | outcome = 5 AND outcome <> 2 AND "offset" >= :lo} AND {removable}
ORDER BY "offset" LIMIT :limit;

-- name: settled_range
-- Sums of the next rows in order, without deleted rows.
-- parameters: lo (offset, inclusive); limit
-- columns: last offset, NULL if there are no rows; the same without deleted rows; rows, and those with
--   a source or trace; lowest and highest seq; bytes; settled_at of the newest
-- index: PRIMARY KEY
SELECT max(last), max(last_removed), count(seq), count(source_seq), count(trace_id), min(seq), max(seq),
  CAST(coalesce(sum(size), 0) AS bigint), max(settled_at)
FROM (
  SELECT "offset" AS last, source_seq, trace_id, CASE WHEN outcome <> 5 THEN seq END AS seq,
    CASE WHEN outcome <> 5 THEN "offset" END AS last_removed,
    CASE WHEN outcome <> 5 THEN size END AS size,
    CASE WHEN outcome <> 5 THEN settled_at END AS settled_at
  FROM history WHERE "offset" >= :lo AND {removable} ORDER BY "offset" LIMIT :limit) AS next;

-- part: range
"offset" >= :lo AND "offset" < :end AND outcome <> 5

-- name: seqs_of_range
-- parameters: lo (inclusive), end (exclusive)
-- index: PRIMARY KEY
SELECT seq FROM history NOT INDEXED WHERE {range} ORDER BY seq;

-- name: remove_events
-- twin: remove_events_run
-- Removes at most :limit events of removed messages, which may have any number of events.
-- parameters: seqs (JSON list), or first and last (seq, inclusive); limit
-- index: event_seq
DELETE FROM event WHERE event_id IN (
  SELECT event_id FROM event WHERE seq {IN ids(:seqs) | BETWEEN :first AND :last}
    AND NOT EXISTS (SELECT 1 FROM message WHERE message.seq = event.seq)
  LIMIT :limit);

-- name: remove_bodies
-- Removes bodies of removed messages, but not those of live messages, or of live dead-letter
-- records, which are smaller than the body if they only refer to it.
-- parameters: seqs (JSON list)
-- index: PRIMARY KEY
DELETE FROM body WHERE seq IN ids(:seqs)
  AND NOT EXISTS (SELECT 1 FROM message WHERE message.seq = body.seq)
  AND NOT EXISTS (
    SELECT 1 FROM message WHERE source_seq = body.seq AND size < length(body.content));

-- name: remove_originals
-- Removes bodies that stayed only because removed dead-letter records referred to them.
-- parameters: offsets (JSON list, of the records)
-- index: PRIMARY KEY
DELETE FROM body WHERE seq IN (
    SELECT source_seq FROM history
    WHERE "offset" IN ids(:offsets) AND source_seq IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM history WHERE history.seq = body.seq)
  AND NOT EXISTS (SELECT 1 FROM message WHERE message.seq = body.seq)
  AND NOT EXISTS (SELECT 1 FROM message WHERE source_seq = body.seq);

-- name: remove_bodies_run
-- Like remove_bodies, for messages with consecutive numbers.
-- parameters: first, last (seq, inclusive)
-- index: PRIMARY KEY
DELETE FROM body WHERE seq BETWEEN :first AND :last
  AND seq NOT IN (SELECT seq FROM message WHERE seq BETWEEN :first AND :last)
  AND seq NOT IN (
    SELECT source_seq FROM message WHERE source_seq BETWEEN :first AND :last
      AND size < (SELECT length(content) FROM body AS original WHERE original.seq = source_seq));

-- name: newest_removable_body
-- Body of the newest row if it is too old, or if this body alone still exceeds a bound.
-- parameters: cutoff (settled_at, exclusive); others, deleted (whether their bound is exceeded)
-- columns: seq; no row if the body stays or is already gone
-- index: PRIMARY KEY
SELECT seq FROM history
WHERE "offset" = (SELECT max("offset") FROM history)
  AND (settled_at < :cutoff OR CASE outcome WHEN 5 THEN CAST(:deleted AS int) ELSE CAST(:others AS int) END <> 0)
  AND EXISTS (SELECT 1 FROM body WHERE body.seq = history.seq)
  AND NOT EXISTS (SELECT 1 FROM message WHERE message.seq = history.seq);

-- name: remove_settled
-- twin: remove_settled_range
-- parameters: offsets (JSON list), or lo (inclusive) and end (exclusive)
-- index: PRIMARY KEY
DELETE FROM history WHERE {"offset" IN ids(:offsets) | {range}};

-- name: remove_clients
-- Removes connections closed before the oldest row of the history.
-- parameters: cutoff (closed_at, exclusive); limit
-- index: client_closed
DELETE FROM client WHERE client IN (
  SELECT client FROM client WHERE closed_at < :cutoff ORDER BY closed_at LIMIT :limit)
  AND client > 0;

-- name: remove_excess_clients
-- Removes the oldest closed connections whose numbers are not among the newest.
-- index: PRIMARY KEY
DELETE FROM client WHERE client IN (
  SELECT client FROM client
  WHERE client > 0 AND client <= (SELECT max(client) FROM client) - :most
    AND closed_at IS NOT NULL
  ORDER BY client LIMIT :limit);

-- name: audit_counters
-- Rows counted so far: those of callers with and without an identity, and the last audit_id.
-- columns: name, value
SELECT 'audit_rows' AS name, coalesce(counter_value('audit_rows'), 0) AS value
UNION ALL SELECT 'audit_refusals', coalesce(counter_value('audit_refusals'), 0)
UNION ALL SELECT 'audit_counted', coalesce(counter_value('audit_counted'), 0);

-- name: count_audit
-- Counts new rows, and those of callers without an identity among them.
-- parameters: after (audit_id, exclusive)
-- columns: rows, refusals, last (audit_id, or NULL)
-- index: PRIMARY KEY
SELECT count(*), count(*) FILTER (WHERE actor = 'nobody'), max(audit_id)
FROM audit WHERE audit_id > :after;

-- name: oldest_audit
-- The oldest row of callers with or without an identity.
-- parameters: refused (1: without)
-- columns: at_ms
-- index of SQLite: audit_identity
SELECT at_ms FROM audit WHERE (actor = 'nobody') = (CAST(:refused AS int) <> 0) ORDER BY audit_id LIMIT 1;

-- name: remove_audit
-- Removes the oldest :excess rows of one kind, and older ones than a time among the first :limit.
-- parameters: refused (1: without an identity); excess; cutoff (at_ms, inclusive); limit
-- index of SQLite: audit_identity
DELETE FROM audit WHERE audit_id IN (
  SELECT audit_id FROM (
    SELECT audit_id, at_ms, row_number() OVER (ORDER BY audit_id) AS place
    FROM audit WHERE (actor = 'nobody') = (CAST(:refused AS int) <> 0)
    ORDER BY audit_id LIMIT :limit) AS oldest
  WHERE place <= :excess OR at_ms < :cutoff);

-- name: remove_receipts
-- Removes the receipts in a range that have expired.
-- parameters: lo, hi (n, inclusive); cutoff (at_ms, inclusive)
-- index: PRIMARY KEY
DELETE FROM receipt WHERE n BETWEEN :lo AND :hi AND at_ms <= :cutoff;
