-- Whether the tables agree, for `verify`, a backup and a drill.  Each of `agree` counts what does
-- not agree; 0: all is well.  Tables are read themselves where an index could hide what is there.

-- name: counts
-- How much there is.
-- columns: queues, messages alive, settled, bodies
SELECT (SELECT count(*) FROM queue), (SELECT count(*) FROM message NOT INDEXED),
  (SELECT count(*) FROM history NOT INDEXED), (SELECT count(*) FROM body);

-- name: ends
-- The newest body and the newest settled message, 0 where there is none.
-- columns: seq, offset
SELECT coalesce((SELECT max(seq) FROM body), 0),
  coalesce((SELECT max("offset") FROM history NOT INDEXED), 0);

-- name: alive_bodies
-- Messages alive whose body is missing, too long, too short, or not the one that was stored.
-- columns: seq
SELECT message.seq FROM message NOT INDEXED LEFT JOIN body USING (seq)
WHERE content IS NULL OR length(content) <> size OR checksum(message.seq, content) <> crc;

-- name: settled_bodies
-- The same of settled ones.  Their body may be gone: it was erased, or is too old.
-- columns: seq, is_known (it is why the message died)
SELECT history.seq, reason IS 'crc' FROM history NOT INDEXED JOIN body USING (seq)
WHERE length(content) <> size OR checksum(history.seq, content) <> crc;

-- name: agree_queues
-- Queues that count other messages than they have.
SELECT count(*) FROM queue LEFT JOIN (
  SELECT queue_id, count(*) AS messages, sum(size) AS bytes FROM message NOT INDEXED
  GROUP BY queue_id
) USING (queue_id)
WHERE live_count <> coalesce(messages, 0) OR live_bytes <> coalesce(bytes, 0);

-- name: agree_owners
-- Messages, alive or settled, of queues that are not there.
SELECT (SELECT count(*) FROM message NOT INDEXED WHERE queue_id NOT IN (SELECT queue_id FROM queue))
  + (SELECT count(*) FROM history NOT INDEXED WHERE queue_id NOT IN (SELECT queue_id FROM queue));

-- name: agree_once
-- Messages that are there twice: alive and settled, or settled two times.
SELECT (SELECT count(*) FROM message NOT INDEXED JOIN history USING (seq))
  + (SELECT count(seq) - count(DISTINCT seq) FROM history NOT INDEXED);

-- name: agree_numbers
-- Rows with a number that was not given out yet.
SELECT (SELECT count(*) FROM message NOT INDEXED, line
    WHERE seq >= next_number OR position >= next_number)
  + (SELECT count(*) FROM history NOT INDEXED, line WHERE seq >= next_number);

-- name: agree_offsets
-- Offsets that are missing behind both fronts of the history.
SELECT coalesce((
  SELECT max("offset") - front.lo + 1 - count(*) FROM history NOT INDEXED, (
    SELECT max(1,
      coalesce((SELECT value FROM counter WHERE name = 'history_lo'), 1),
      coalesce((SELECT value FROM counter WHERE name = 'deleted_lo'), 1)) AS lo
  ) AS front
  WHERE "offset" >= front.lo
), 0);

-- name: agree_places
-- Settled messages whose place is missing or another one, and places of nothing.
SELECT (
  SELECT count(*) FROM history NOT INDEXED WHERE "offset" <= placed.upto AND NOT (
    EXISTS (
      SELECT 1 FROM history_place AS p WHERE p.block = history."offset" >> 16
        AND p.queue_id = history.queue_id AND p.outcome = history.outcome
        AND p."offset" = history."offset")
    AND EXISTS (
      SELECT 1 FROM history_number AS n WHERE n.block = history.seq >> 16
        AND n.queue_id = history.queue_id AND n.seq = history.seq
        AND n."offset" = history."offset" AND n.outcome = history.outcome))
) + abs((SELECT count(*) FROM history_place)
    - (SELECT count(*) FROM history NOT INDEXED WHERE "offset" <= placed.upto))
  + abs((SELECT count(*) FROM history_number)
    - (SELECT count(*) FROM history NOT INDEXED WHERE "offset" <= placed.upto))
FROM (SELECT coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0) AS upto) AS placed;

-- name: agree_totals
-- Totals of the history that are not those of its rows.
SELECT (live.rows <> coalesce((SELECT value FROM counter WHERE name = 'history_rows'), 0))
  + (live.bytes <> coalesce((SELECT value FROM counter WHERE name = 'history_bytes'), 0))
  + (live.deleted <> coalesce((SELECT value FROM counter WHERE name = 'deleted_rows'), 0))
  + (live.deleted_bytes <> coalesce((SELECT value FROM counter WHERE name = 'deleted_bytes'), 0))
FROM (
  SELECT count(*) FILTER (WHERE outcome <> 5) AS rows,
    coalesce(sum(size) FILTER (WHERE outcome <> 5), 0) AS bytes,
    count(*) FILTER (WHERE outcome = 5) AS deleted,
    coalesce(sum(size) FILTER (WHERE outcome = 5), 0) AS deleted_bytes
  FROM history NOT INDEXED
  WHERE "offset" <= coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0)
) AS live;

-- name: agree_claims
-- Claims of messages that nobody can hold: they are not dispatched, or not there.
SELECT count(*) FROM claim LEFT JOIN message USING (seq) WHERE state IS NOT 1;
