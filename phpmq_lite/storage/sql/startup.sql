-- Starts of the broker, one row per start, each with a report.

-- name: insert_start
-- parameters: at_ms, version, was_clean, down_from_ms (NULL: the first start), report (JSON)
INSERT INTO start (at_ms, version, was_clean, down_from_ms, report) VALUES (?, ?, ?, ?, ?);

-- name: trim_starts
-- Keeps the newest starts.
-- parameters: how many starts to keep
-- index: INTEGER PRIMARY KEY
DELETE FROM start WHERE start_id <= (SELECT max(start_id) FROM start) - ?;

-- name: newest_starts
-- The last starts, newest first.
-- parameters: limit
-- columns: start_id, at_ms, version, was_clean, down_from_ms, report, dismissed_by
SELECT start_id, at_ms, version, was_clean, down_from_ms, report, dismissed_by FROM start
ORDER BY start_id DESC LIMIT :limit;

-- name: previous_start
-- The version and time of the previous start.
-- columns: version, at_ms
SELECT version, at_ms FROM start ORDER BY start_id DESC LIMIT 1;

-- name: overdue_messages
-- The number of overdue ready messages by queue, highest first.
-- parameters: now (steady ms)
-- columns: queue name, count
-- index: message_deadline
SELECT (SELECT name FROM queue WHERE queue.queue_id = late.queue_id), late.n
FROM (SELECT queue_id, count(*) AS n FROM message INDEXED BY message_deadline
      WHERE state = 0 AND deadline_ms IS NOT NULL AND deadline_ms <= ?
      GROUP BY queue_id) AS late
ORDER BY late.n DESC;
