-- What the scrub reads, in the order of the tables.

-- name: alive
-- Messages alive with their bodies; NULL where it is missing.
-- parameters: after (seq, exclusive)
-- columns: seq, seq, size, crc, content
-- index: INTEGER PRIMARY KEY
SELECT message.seq, message.seq, size, crc, content FROM message NOT INDEXED LEFT JOIN body USING (seq)
WHERE message.seq > ? ORDER BY message.seq;

-- name: settled
-- Settled messages whose body is there, but for those that died of it.
-- parameters: after (offset, exclusive)
-- columns: offset, seq, size, crc, content
-- index: INTEGER PRIMARY KEY
SELECT "offset", history.seq, size, crc, content FROM history NOT INDEXED JOIN body USING (seq)
WHERE "offset" > ? AND reason IS NOT 'crc' ORDER BY "offset";
