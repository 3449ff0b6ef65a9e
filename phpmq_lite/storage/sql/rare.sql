-- What an operator's commands add to a batch now and then; see model.Batch.rare.

-- name: blank_body
-- A secret is overwritten before its row goes: SQLite leaves the bytes of a deleted row in place.
-- parameters: seq
-- index: INTEGER PRIMARY KEY
UPDATE body SET content = zeroblob(length(content)) WHERE seq = ?;

-- name: erase_body
-- parameters: seq
-- index: INTEGER PRIMARY KEY
DELETE FROM body WHERE seq = ?;

-- name: tie
-- The event of a message that was made of another one, with the other one's id.
-- parameters: seq, at_ms, kind; seq of the other one three times
-- index: INTEGER PRIMARY KEY
-- index: history_seq
INSERT INTO event (seq, at_ms, kind, detail) SELECT ?, ?, ?, coalesce(
  (SELECT printf('%016x%016x', seq, token) FROM message WHERE seq = ?),
  (SELECT printf('%016x%016x', seq, token) FROM history WHERE seq = ?),
  printf('%016x', ?));
