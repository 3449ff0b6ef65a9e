-- How much a standby's replica lacks, and Litestream's tables.

-- name: history_id
-- columns: value
SELECT value FROM meta WHERE name = 'history_id';

-- name: count_published
-- Messages published since a time, up to a limit of live and as many settled ones.  The first ones
-- are searched by bisection, because both tables are in the order of time.
-- parameters: since_ms (Unix ms); limit
-- columns: count
WITH RECURSIVE
  live (low, high) AS (
    SELECT 0, 1 << 62
    UNION ALL
    SELECT
      iif(
        (SELECT published_at FROM message WHERE seq >= (low + high) / 2 ORDER BY seq LIMIT 1)
          < :since_ms, (low + high) / 2 + 1, low),
      iif(
        (SELECT published_at FROM message WHERE seq >= (low + high) / 2 ORDER BY seq LIMIT 1)
          < :since_ms, high, (low + high) / 2)
    FROM live WHERE low < high
  ),
  settled (low, high) AS (
    SELECT 0, 1 << 62
    UNION ALL
    SELECT
      iif(
        (SELECT settled_at FROM history WHERE "offset" >= (low + high) / 2 ORDER BY "offset" LIMIT 1)
          < :since_ms, (low + high) / 2 + 1, low),
      iif(
        (SELECT settled_at FROM history WHERE "offset" >= (low + high) / 2 ORDER BY "offset" LIMIT 1)
          < :since_ms, high, (low + high) / 2)
    FROM settled WHERE low < high
  )
SELECT
  (SELECT count(*) FROM (
    SELECT 1 FROM message WHERE seq >= (SELECT max(low) FROM live) LIMIT :limit))
  + (SELECT count(*) FROM (
    SELECT 1 FROM history WHERE "offset" >= (SELECT max(low) FROM settled)
      AND published_at >= :since_ms LIMIT :limit));

-- name: drop_sequence
DROP TABLE IF EXISTS _litestream_seq;

-- name: drop_lock
DROP TABLE IF EXISTS _litestream_lock;
