-- name: trim_clock_steps
-- Removes steps older than the retained history and audit log, and steps beyond a maximum.  The
-- oldest row is looked for from the fronts on, because removed rows may still be in the index.
DELETE FROM clock_step
WHERE number < (
    SELECT max(number) FROM clock_step
    WHERE at_ms <= ? AND from_offset <= least(
      (SELECT min("offset") FROM history WHERE "offset" >= coalesce(counter_value('history_lo'), 0)),
      (SELECT min("offset") FROM history WHERE outcome = 5 AND outcome <> 2
        AND "offset" >= coalesce(counter_value('deleted_lo'), 0))))
  OR number <= (SELECT max(number) FROM clock_step) - ?;

-- name: store_next_number
SELECT FROM line, change_counter('next_number', next_number, false);

-- name: receipt_ends
SELECT oldest_receipt(), n, at_ms FROM receipt ORDER BY n DESC LIMIT 1;
