-- Starts of the broker: one row each, with what was found.

-- name: insert
-- parameters: at_ms, version, was_clean, down_from_ms (NULL: the first start), report (JSON)
INSERT INTO start (at_ms, version, was_clean, down_from_ms, report) VALUES (?, ?, ?, ?, ?);

-- name: trim
-- Only the newest stay.
-- parameters: how many
-- index: INTEGER PRIMARY KEY
DELETE FROM start WHERE start_id <= (SELECT max(start_id) FROM start) - ?;

-- name: dismiss
-- Nobody needs to see it any more.
-- parameters: dismissed_by, start_id
-- index: INTEGER PRIMARY KEY
UPDATE start SET dismissed_by = :dismissed_by WHERE start_id = :start_id AND dismissed_by IS NULL;

-- name: newest
-- The newest starts, the newest first.
-- parameters: limit
-- columns: start_id, at_ms, version, was_clean, down_from_ms, report, dismissed_by
SELECT start_id, at_ms, version, was_clean, down_from_ms, report, dismissed_by FROM start
ORDER BY start_id DESC LIMIT :limit;

-- name: before
-- Version and time of the start before, at a start.
-- columns: version, at_ms
SELECT version, at_ms FROM start ORDER BY start_id DESC LIMIT 1;

-- name: overdue
-- Ready messages whose deadline has passed, by queue, the most first; at a start.
-- parameters: now (steady ms)
-- columns: queue name, count
-- index: message_deadline
SELECT (SELECT name FROM queue WHERE queue.queue_id = late.queue_id), late.n
FROM (SELECT queue_id, count(*) AS n FROM message INDEXED BY message_deadline
      WHERE state = 0 AND deadline_ms IS NOT NULL AND deadline_ms <= ?
      GROUP BY queue_id) AS late
ORDER BY late.n DESC;
