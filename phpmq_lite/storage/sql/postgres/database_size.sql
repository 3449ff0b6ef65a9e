-- name: pages
-- Pages of the database, not including the write-ahead log; free pages are not counted.
SELECT pg_database_size(current_database()) / current_setting('block_size')::bigint,
  0, current_setting('block_size')::bigint;
