-- The bodies that the scrub checks, in table order.

-- name: alive
-- Live messages with their bodies; NULL if one is missing.
-- parameters: after (seq, exclusive)
-- columns: seq, seq, size, crc, content
-- index: INTEGER PRIMARY KEY
SELECT message.seq, message.seq, size, crc, content FROM message NOT INDEXED LEFT JOIN body USING (seq)
WHERE message.seq > ? ORDER BY message.seq;

-- name: settled
-- Settled messages that have a body, except those that died of a damaged one.
-- parameters: after (offset, exclusive)
-- columns: offset, seq, size, crc, content
-- index: INTEGER PRIMARY KEY
SELECT "offset", history.seq, size, crc, content FROM history NOT INDEXED JOIN body USING (seq)
WHERE "offset" > ? AND reason IS NOT 'crc' ORDER BY "offset";
