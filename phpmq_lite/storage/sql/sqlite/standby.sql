-- How much a standby's replica lacks, and Litestream's tables.

-- name: history_id
-- columns: value
SELECT value FROM meta WHERE name = 'history_id';

-- name: message_from
-- The first live message with at least a number.
-- parameters: seq
-- columns: seq, published_at
SELECT seq, published_at FROM message WHERE seq >= ? ORDER BY seq LIMIT 1;

-- name: settled_from
-- The first settled message with at least an offset.
-- parameters: offset
-- columns: offset, settled_at
SELECT "offset", settled_at FROM history WHERE "offset" >= ? ORDER BY "offset" LIMIT 1;

-- name: count_published
-- Messages published since a time that are live, or that were settled from an offset on.
-- parameters: seq of the first live one; limit; offset; published_at; limit
-- columns: count
SELECT (SELECT count(*) FROM (SELECT 1 FROM message WHERE seq >= ? LIMIT ?))
  + (SELECT count(*) FROM (
       SELECT 1 FROM history WHERE "offset" >= ? AND published_at >= ? LIMIT ?));

-- name: drop_sequence
DROP TABLE IF EXISTS _litestream_seq;

-- name: drop_lock
DROP TABLE IF EXISTS _litestream_lock;
