-- How much a standby's replica lacks, and Litestream's tables.

-- name: history_id
-- columns: value
SELECT value FROM meta WHERE name = 'history_id';

-- name: live_at
-- Time of the first live message from a number on; the end of time if there is none.
-- parameters: seq
SELECT coalesce((SELECT published_at FROM message WHERE seq >= ? ORDER BY seq LIMIT 1), 1 << 62);

-- name: settled_at
-- parameters: offset
SELECT coalesce(
  (SELECT settled_at FROM history WHERE "offset" >= ? ORDER BY "offset" LIMIT 1), 1 << 62);

-- name: count_published
-- Messages from a number on, and settled ones from an offset on that were published since a time.
-- parameters: seq; limit; offset; since (Unix ms); limit
-- columns: count
SELECT
  (SELECT count(*) FROM (SELECT 1 FROM message WHERE seq >= ? LIMIT ?)) + (SELECT count(*) FROM (
    SELECT 1 FROM history WHERE "offset" >= ? AND published_at >= ? LIMIT ?));

-- name: drop_sequence
DROP TABLE IF EXISTS _litestream_seq;

-- name: drop_lock
DROP TABLE IF EXISTS _litestream_lock;
