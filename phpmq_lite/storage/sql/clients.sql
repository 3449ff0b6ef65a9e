-- What the admin reads of connections that have ended.

-- name: closed
-- Connections that ended since a time and ahead of a place, the last one first.
-- parameters: since (Unix ms); before_at (Unix ms), before_client: the place, exclusive; limit
-- columns: those of clients.ClientRow
-- index: client_closed
SELECT client, kind, address, opened_at, closed_at, framing, revision, reason
FROM client
WHERE closed_at >= :since AND (closed_at, client) < (:before_at, :before_client)
ORDER BY closed_at DESC, client DESC
LIMIT :limit;

-- name: one
-- One connection, whether it is open or not.
-- parameters: client
-- columns: those of clients.ClientRow
SELECT client, kind, address, opened_at, closed_at, framing, revision, reason
FROM client
WHERE client = :client;
