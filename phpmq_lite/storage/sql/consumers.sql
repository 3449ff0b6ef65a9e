-- Closed connections, subscriptions, history readers and app_ids.

-- name: app_ids
-- All app_ids by name, except those used for a single publish.
-- parameters: after (app_id, exclusive); limit
-- columns: app_id, owner, version, at_ms, rows
-- index: PRIMARY KEY
SELECT app_id, owner, version, at_ms, "rows" FROM published
WHERE app_id > :after AND single_use = 0 ORDER BY app_id LIMIT :limit;

-- name: subscriptions
-- Subscriptions and the messages that they hold, by name.
-- parameters: name (NULL for all subscriptions)
-- columns: name, queue_id, queue name (NULL: unknown), acked_upto, hi, created_at, number of
--   claimed messages, their size in bytes, claimed_at of the oldest
SELECT subscription.name, subscription.queue_id,
  (SELECT name FROM queue WHERE queue.queue_id = subscription.queue_id),
  acked_upto, next_claim - 1, subscription.created_at, count(claim.claim),
  CAST(coalesce(sum(message.size), 0) AS bigint), min(claim.claimed_at)
FROM subscription
LEFT JOIN claim ON claim.subscription_id = subscription.subscription_id
LEFT JOIN message ON message.seq = claim.seq
WHERE coalesce(CAST(:name AS text), subscription.name) = subscription.name
GROUP BY subscription.subscription_id ORDER BY subscription.name;

-- name: history_readers
-- columns: name, offset, at_ms, owner
SELECT name, "offset", at_ms, owner FROM reader ORDER BY name;

-- name: unread
-- The first rows of the history after an offset.
-- parameters: after (offset, exclusive); limit
-- columns: rows; bytes; settled_at of the first, or NULL
-- index: PRIMARY KEY
SELECT count(*), CAST(coalesce(sum(size), 0) AS bigint),
  (SELECT settled_at FROM history WHERE "offset" > :after ORDER BY "offset" LIMIT 1)
FROM (SELECT size FROM history WHERE "offset" > :after ORDER BY "offset" LIMIT :limit) AS next;

-- name: closed_clients
-- twin: client
-- Connections closed since a time and before a position, newest first; or a single one, even open.
-- parameters: since (Unix ms); before_at (Unix ms), before_client: the position, exclusive; limit.
--   Or client
-- columns: those of consumers.ClientRow
-- index: {client_closed | PRIMARY KEY}
SELECT client, kind, address, opened_at, closed_at, framing, revision, reason
FROM client
WHERE {closed_at >= :since AND (closed_at, client) < (:before_at, :before_client)
  ORDER BY closed_at DESC, client DESC LIMIT :limit
  | client = :client};
