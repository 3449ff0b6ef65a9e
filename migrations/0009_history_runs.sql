-- Indexes the history by runs: one row for messages with consecutive offsets, the same queue and
-- outcome, and increasing seqs, instead of two rows for each message.

-- Queries read the messages of a run from the history, so a run may outlive some of them: it is
-- removed once the whole block is older than the history.
CREATE TABLE history_run (
  block INTEGER NOT NULL,                 -- first_offset >> 16
  queue_id INTEGER NOT NULL,
  outcome INTEGER NOT NULL,               -- as in history
  first_offset INTEGER NOT NULL,          -- no run crosses a multiple of 1,024
  length INTEGER NOT NULL,                -- offsets; those missing in history count as well
  seq_block INTEGER NOT NULL,             -- first_seq >> 16
  first_seq INTEGER NOT NULL,             -- the lowest; no run crosses a multiple of 4,096
  PRIMARY KEY (block, queue_id, outcome, first_offset)
) WITHOUT ROWID;
CREATE INDEX history_run_seq ON history_run (seq_block, queue_id, first_seq, length);

-- A run per message: finding longer ones would need memory for all of them.
INSERT INTO history_run (
  block, queue_id, outcome, first_offset, length, seq_block, first_seq
)
SELECT "offset" >> 16, queue_id, outcome, "offset", 1, block, seq FROM history_number;

DROP TRIGGER history_leaves;
DROP TABLE history_place;
DROP TABLE history_number;
