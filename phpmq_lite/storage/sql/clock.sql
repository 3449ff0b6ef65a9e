-- How far the wall clock was ahead of the scale that deadlines are on, since which settled message.
-- A healthy machine has one row.

-- name: add_step
-- From the next settled message on; ahead of the batch that was decided after the clock was set.
-- parameters: at_ms (steady), step_ms
INSERT INTO clock_step (from_offset, at_ms, step_ms)
SELECT coalesce(max("offset"), 0) + 1, ?, ? FROM history;

-- name: steps
-- columns: from_offset, step_ms
SELECT from_offset, step_ms FROM clock_step ORDER BY number;

-- name: newest_step
-- columns: step_ms; no row in a new database
SELECT step_ms FROM clock_step ORDER BY number DESC LIMIT 1;

-- name: trim_steps
-- Those that nothing kept was settled under, and that ended long ago; and past a number of rows.
-- parameters: before (steady ms, inclusive); how many stay
-- index: INTEGER PRIMARY KEY
DELETE FROM clock_step
WHERE number < (
    SELECT max(number) FROM clock_step
    WHERE from_offset <= (SELECT min("offset") FROM history) AND at_ms <= ?)
  OR number <= (SELECT max(number) FROM clock_step) - ?;

-- name: shift_deadlines
-- The broker was away for so long: what was there before has less time left.
-- parameters: away_ms, first_number, excluded
UPDATE message SET deadline_ms = deadline_ms - :away_ms
WHERE deadline_ms IS NOT NULL AND seq < :first_number AND position < :first_number
  AND seq NOT IN (SELECT value FROM json_each(:excluded));

-- name: would_expire
-- Ready messages that expire if the time away counts.
-- parameters: moment (steady ms, inclusive); number: the first given since; most: more are not counted
-- columns: count
-- index: message_deadline
SELECT count(*) FROM (
  SELECT 1 FROM message INDEXED BY message_deadline
  WHERE state = 0 AND deadline_ms IS NOT NULL AND deadline_ms <= :moment
    AND seq < :number AND position < :number
  LIMIT :most);
