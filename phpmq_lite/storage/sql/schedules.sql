-- Schedules and their runs.

-- part: columns
schedule_id, name, cron, timezone, queue, content, encoding, ttl_s, priority, group_name,
  is_enabled, missed, missed_max, created_at, created_by, changed_at, changed_by, seen_upto

-- part: run_columns
schedule_id, tick_ms, at_ms, outcome, detail, message_id, run_by

-- name: all
-- twin: one
-- All schedules by name, or one of them.
-- index of SQLite: sqlite_autoindex_schedule_1
SELECT {columns} FROM schedule {ORDER BY name | WHERE name = :name};

-- name: ticks_not_passed
-- Ticks of schedules that have a message, although the clock has not passed them.
-- columns: schedule_id, tick_ms
-- index: PRIMARY KEY
SELECT run.schedule_id, run.tick_ms FROM schedule CROSS JOIN schedule_run AS run
WHERE run.schedule_id = schedule.schedule_id AND run.tick_ms > schedule.seen_upto
  AND run.outcome = 'published';

-- name: last_runs
-- The last run of each schedule.
-- index: PRIMARY KEY
SELECT {run_columns} FROM schedule_run AS run
WHERE tick_ms = (SELECT max(tick_ms) FROM schedule_run WHERE schedule_id = run.schedule_id);

-- name: runs
-- The runs of a schedule, newest tick first.
-- parameters: schedule_id; before (tick_ms, exclusive); limit
-- index: PRIMARY KEY
SELECT {run_columns} FROM schedule_run
WHERE schedule_id = :schedule_id AND tick_ms < :before ORDER BY tick_ms DESC LIMIT :limit;

-- name: failures
-- Number of failed runs since a time by schedule, and the text of the last one.
-- columns: schedule's name, queue, count, detail
-- index of SQLite: schedule_run_failed
SELECT schedule.name, schedule.queue, failed.number, (
  SELECT detail FROM schedule_run AS run WHERE run.schedule_id = schedule.schedule_id
    AND run.tick_ms = failed.last_ms)
FROM (SELECT schedule_id, count(*) AS number, max(tick_ms) AS last_ms
      FROM schedule_run INDEXED BY schedule_run_failed
      WHERE outcome = 'failed' AND at_ms >= :since GROUP BY schedule_id) AS failed
JOIN schedule ON schedule.schedule_id = failed.schedule_id ORDER BY schedule.name;
