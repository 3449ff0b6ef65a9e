-- Recent activity for live views and the overview; each statement reads at most :limit rows.

-- name: recent_deaths
-- Messages that have died since a given time, by queue and reason.
-- parameters: since (Unix ms); limit (newest rows to read)
-- columns: queue_id, reason, messages
-- index: history_unusual
SELECT queue_id, reason, count(*)
FROM (
  SELECT queue_id, reason, settled_at
  FROM history INDEXED BY history_unusual
  WHERE outcome = 4 AND outcome <> 2
  ORDER BY "offset" DESC
  LIMIT :limit
) AS newest
WHERE settled_at >= :since
GROUP BY queue_id, reason;

-- name: unread_expiries
-- Messages that have expired undispatched since a given time, by queue.
-- parameters: since (Unix ms); limit (newest rows to read)
-- columns: queue_id, messages
-- index: history_unusual
SELECT queue_id, count(*)
FROM (
  SELECT queue_id, deliveries, settled_at
  FROM history INDEXED BY history_unusual
  WHERE outcome = 3 AND outcome <> 2
  ORDER BY "offset" DESC
  LIMIT :limit
) AS newest
WHERE settled_at >= :since AND deliveries = 0
GROUP BY queue_id;

-- name: previews
-- Live and settled messages with the beginning of their bodies; unknown seqs are omitted.
-- parameters: seqs (a JSON array)
-- columns: seq, token, queue_id, size, the first 480 bytes of the body
-- index: history_seq
SELECT m.seq, m.token, m.queue_id, m.size, nullif(substr(b.content, 1, 480), '')
FROM message AS m LEFT JOIN body AS b ON b.seq = m.seq
WHERE m.seq IN ids(:seqs)
UNION ALL
SELECT m.seq, m.token, m.queue_id, m.size, nullif(substr(b.content, 1, 480), '')
FROM history AS m LEFT JOIN body AS b ON b.seq = m.seq
WHERE m.seq IN ids(:seqs);

-- name: recent_events
-- Events of one queue's messages among the newest events of all queues, newest first.
-- parameters: queue_id; among, limit (rows)
-- columns: event_id, seq, token, at_ms, kind, detail
-- index: history_seq
SELECT
  e.event_id, e.seq, coalesce(m.token, h.token), e.at_ms, e.kind, e.detail
FROM (SELECT * FROM event ORDER BY event_id DESC LIMIT :among) AS e
LEFT JOIN message AS m ON m.seq = e.seq
LEFT JOIN history AS h ON h.seq = e.seq
WHERE coalesce(m.queue_id, h.queue_id) = :queue_id
ORDER BY e.event_id DESC
LIMIT :limit;

-- name: published_after
-- The next published messages, live or settled, in order.
-- parameters: after (seq, exclusive); limit
-- columns: seq
-- index: history_seq
SELECT seq FROM (SELECT seq FROM message WHERE seq > :after ORDER BY seq LIMIT :limit) AS live
UNION ALL
SELECT seq FROM (SELECT seq FROM history WHERE seq > :after ORDER BY seq LIMIT :limit) AS settled
ORDER BY 1
LIMIT :limit;

-- name: settled_after
-- The next settled messages, in order.
-- parameters: after (offset, exclusive); limit
-- columns: offset, seq
SELECT "offset", seq FROM history WHERE "offset" > :after ORDER BY "offset" LIMIT :limit;

-- name: ends
-- The next message number and the last assigned offset.
-- columns: number of the next message; last offset, NULL if there is none yet
SELECT
  (SELECT next_number FROM line),
  (SELECT max("offset") FROM history);

-- name: newest_published
-- The newest published messages of all queues, live and settled, among the last assigned numbers.
-- parameters: among (numbers); since (Unix ms)
-- columns: seq, name of the queue, urn, trace_id, published_at, settled_at
-- index: history_seq
SELECT seq, q.name, m.urn, m.trace_id, m.published_at, m.settled_at
FROM (
  SELECT seq, queue_id, urn, trace_id, published_at, NULL AS settled_at
  FROM message WHERE seq >= (SELECT next_number FROM line) - :among
  UNION ALL
  SELECT seq, queue_id, urn, trace_id, published_at, settled_at
  FROM history WHERE seq >= (SELECT next_number FROM line) - :among
) AS m LEFT JOIN queue AS q ON q.queue_id = m.queue_id
WHERE m.published_at >= :since
ORDER BY 1;
