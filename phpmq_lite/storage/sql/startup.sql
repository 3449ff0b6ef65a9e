-- Broker startups, one row each, with a report.

-- name: insert_start
-- parameters: at_ms, version, was_clean, down_from_ms (NULL on the first startup), report (JSON)
INSERT INTO start (at_ms, version, was_clean, down_from_ms, report) VALUES (?, ?, ?, ?, ?);

-- name: trim_starts
-- Deletes all but the newest startups.
-- parameters: number of startups to keep
-- index: PRIMARY KEY
DELETE FROM start WHERE start_id <= (SELECT max(start_id) FROM start) - ?;

-- name: newest_starts
-- The most recent startups, newest first.
-- columns: start_id, at_ms, version, was_clean, down_from_ms, report, dismissed_by
SELECT start_id, at_ms, version, was_clean, down_from_ms, report, dismissed_by FROM start
ORDER BY start_id DESC LIMIT :limit;

-- name: previous_start
-- Version and time of the previous startup.
-- columns: version, at_ms
SELECT version, at_ms FROM start ORDER BY start_id DESC LIMIT 1;

-- name: overdue_messages
-- Number of overdue ready messages by queue, highest count first.
-- parameters: now (steady ms)
-- columns: queue name, count
-- index: message_deadline
SELECT (SELECT name FROM queue WHERE queue.queue_id = late.queue_id), late.n
FROM (SELECT queue_id, count(*) AS n FROM message INDEXED BY message_deadline
      WHERE state IN (0, 7) AND deadline_ms IS NOT NULL AND deadline_ms <= ?
      GROUP BY queue_id) AS late
ORDER BY late.n DESC;
