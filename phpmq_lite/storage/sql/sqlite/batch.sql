-- part: offset
-- SQLite assigns the next offset.

-- part: next_offset

-- name: insert_run
-- New messages with consecutive numbers that differ only in queue and content, at their original
-- positions, dispatched at most once.  Binding 4 values per row instead of 11 saves 0.5 µs.
-- before the rows: seq of the first row, state, ttl_s, deadline_ms, published_at, dispatched (Unix
--   ms), publisher, consumer.  rows: queue_id, token, size, crc
INSERT INTO message (seq, position, state, deliveries, ttl_s, deadline_ms, published_at,
  first_dispatched_at, last_dispatched_at, charged, publisher, consumer, queue_id, token, size, crc)
VALUES {rows:(?1 + {n}, ?1 + {n}, ?2, ?2, ?3, ?4, ?5, ?6, ?6, 0, ?7, ?8, ?, ?, ?, ?)};

-- name: insert_bodies
-- Contents of messages with consecutive numbers.
-- before the rows: seq of the first row.  rows: content
INSERT INTO body (seq, content) VALUES {rows:(?1 + {n}, ?)};

-- name: update_queue
-- Updates the numbers and size of live messages in queues that a batch changed.
UPDATE queue {set: queue_id, live_count, live_bytes, scheduled_count};

-- name: set_counter
-- parameters: name, value
INSERT INTO counter (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: add_counter
-- parameters: name, number to add
INSERT INTO counter (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = value + excluded.value;

-- name: delete_forgotten_queues
-- At startup, deletes removed queues to which neither the history nor a receipt refers.
-- parameters: settings of a removed queue (JSON)
-- index: history_run USING PRIMARY KEY
DELETE FROM queue WHERE settings = ?
  AND NOT EXISTS (
    SELECT 1 FROM history_run CROSS JOIN history
      ON history."offset" >= first_offset AND history."offset" < first_offset + length
    WHERE history_run.queue_id = queue.queue_id AND block IN (
      WITH RECURSIVE each (block) AS (
        SELECT min(block) FROM history_run
        UNION ALL
        SELECT (SELECT block FROM history_run WHERE block > each.block ORDER BY block LIMIT 1)
        FROM each WHERE each.block IS NOT NULL
      )
      SELECT block FROM each WHERE block IS NOT NULL
    ))
  AND queue_id NOT IN (
    SELECT queue_id FROM history NOT INDEXED
    WHERE "offset" > coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0))
  AND queue_id NOT IN (SELECT abs(queue_id) FROM receipt)
  AND queue_id NOT IN (SELECT queue_id FROM stage_part)
  AND queue_id NOT IN (SELECT queue_id FROM subscription);
