-- What an operator's commands add to a batch now and then; see model.Batch.rare.

-- name: overwrite_body
-- A secret is overwritten before its row goes: SQLite leaves the bytes of a deleted row in place.
-- parameters: seq
-- index: INTEGER PRIMARY KEY
UPDATE body SET content = zeroblob(length(content)) WHERE seq = :seq;

-- name: delete_body
-- parameters: seq
-- index: INTEGER PRIMARY KEY
DELETE FROM body WHERE seq = :seq;

-- name: link_messages
-- The event of a message that was made of another one, with the other one's id.
-- parameters: seq, at_ms, kind; seq of the other one three times
-- index: INTEGER PRIMARY KEY
-- index: history_seq
INSERT INTO event (seq, at_ms, kind, detail) SELECT :seq, :at_ms, :kind, coalesce(
  (SELECT printf('%016x%016x', seq, token) FROM message WHERE seq = :source_seq),
  (SELECT printf('%016x%016x', seq, token) FROM history WHERE seq = :source_seq),
  printf('%016x', :source_seq));
