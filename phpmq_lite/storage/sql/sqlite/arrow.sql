-- part: column_body
(SELECT CAST(content AS BLOB) FROM body WHERE body.seq = m.seq)

-- part: part_ends
-- Last number of each part, which has :part_bytes of bodies, or one larger body.
SELECT max(number) AS number FROM (
  SELECT {number} AS number, sum(m.size) OVER (ORDER BY {number}) / :part_bytes AS part
  {range}
) GROUP BY part ORDER BY 1
