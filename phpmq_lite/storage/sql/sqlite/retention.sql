-- name: trim_clock_steps
-- Removes steps older than the retained history and audit log, and steps beyond a maximum.
-- parameters: before (steady ms, inclusive); number of rows to keep
-- index: INTEGER PRIMARY KEY
DELETE FROM clock_step
WHERE number < (
    SELECT max(number) FROM clock_step
    WHERE from_offset <= (SELECT min("offset") FROM history) AND at_ms <= ?)
  OR number <= (SELECT max(number) FROM clock_step) - ?;

-- name: store_next_number
-- Must run before bodies are removed, because the next number is derived from the newest body.
INSERT INTO counter (name, value) SELECT 'next_number', next_number FROM line WHERE true
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: remove_runs
-- Removes index rows of blocks that are older than the history.
-- index: history_run USING PRIMARY KEY
DELETE FROM history_run WHERE (block, queue_id, outcome, first_offset) IN (
  SELECT block, queue_id, outcome, first_offset FROM history_run
  WHERE block < (SELECT min("offset") >> 16 FROM history) LIMIT :limit
);

-- name: remove_traces
-- twin: remove_traces_range
-- Removes the rows of the trace index of history rows that are removed next.
-- parameters: offsets (JSON list), or lo (inclusive) and end (exclusive)
-- index: trace_place USING PRIMARY KEY
DELETE FROM trace_place WHERE (block, trace_id, seq) IN (
  SELECT seq >> 14, trace_id, seq FROM history
  WHERE { "offset" IN (SELECT value FROM json_each(:offsets)) | {range} } AND trace_id IS NOT NULL
);

-- name: receipt_ends
-- Oldest and newest receipts; no row if there are none.
-- columns: n of the oldest; n and at_ms (steady) of the newest
SELECT (SELECT min(n) FROM receipt), n, at_ms FROM receipt ORDER BY n DESC LIMIT 1;
