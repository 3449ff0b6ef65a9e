-- Copies to and from the other engine, and what a copy and a restore change.

-- name: last_number
-- Highest number in use, for any version of the schema.
SELECT coalesce(max(number), 0) FROM (
  SELECT value - 1 AS number FROM counter WHERE name = 'next_number'
  UNION ALL SELECT max(seq) FROM message UNION ALL SELECT max(seq) FROM history
  UNION ALL SELECT max(position & 281474976710655) FROM message  -- the number in a position
  UNION ALL SELECT max(position & 281474976710655) FROM history
  UNION ALL SELECT max(seq) FROM body
) AS used;
