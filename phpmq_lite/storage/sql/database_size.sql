-- Sizes for the system page and the metrics.

-- name: counters
-- columns: name, value
SELECT name, value FROM counter;

-- name: history
-- First and last rows of the history; NULL if it is empty.
-- columns: settled_at of the oldest row, offset of the newest row
SELECT (SELECT settled_at FROM history ORDER BY "offset" LIMIT 1),
  (SELECT max("offset") FROM history);
