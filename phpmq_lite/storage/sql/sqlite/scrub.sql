-- Bodies for the scrub to check, in table order.

-- name: alive
-- Live messages and their bodies; a missing body is NULL.
-- parameters: after (seq, exclusive)
-- columns: seq, seq, size, crc, content
-- index: INTEGER PRIMARY KEY
SELECT message.seq, message.seq, size, crc, content FROM message NOT INDEXED LEFT JOIN body USING (seq)
WHERE message.seq > ? ORDER BY message.seq;

-- name: settled
-- Settled messages with a body, except messages that died because their body was damaged.
-- parameters: after (offset, exclusive)
-- columns: offset, seq, size, crc, content
-- index: INTEGER PRIMARY KEY
SELECT "offset", history.seq, size, crc, content FROM history NOT INDEXED JOIN body USING (seq)
WHERE "offset" > ? AND reason IS NOT 'crc' ORDER BY "offset";
