-- How the places of settled messages are filled behind the writer; see history_place.

-- name: behind
-- How far the places go, and the next rows without one.
-- columns: placed upto (offset), next and last offset behind it (NULL: all are placed)
-- index: INTEGER PRIMARY KEY
SELECT
  placed.upto,
  (SELECT "offset" FROM history WHERE "offset" > placed.upto ORDER BY "offset" LIMIT 1),
  (SELECT "offset" FROM history WHERE "offset" > placed.upto ORDER BY "offset" DESC LIMIT 1)
FROM (
  SELECT coalesce((SELECT value FROM counter WHERE name = 'placed_upto'), 0) AS upto
) AS placed;

-- name: place
-- In the order of the table: each of its pages is written once.
-- parameters: after (offset, exclusive); upto (inclusive)
-- index: INTEGER PRIMARY KEY
INSERT INTO history_place (queue_id, outcome, "offset")
SELECT queue_id, outcome, "offset" FROM history NOT INDEXED
WHERE "offset" > :after AND "offset" <= :upto
ORDER BY queue_id, outcome, "offset";
