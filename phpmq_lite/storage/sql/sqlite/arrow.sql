-- part: column_body
(SELECT CAST(content AS BLOB) FROM body WHERE body.seq = m.seq)

-- part: part_ends
-- Last number of each part, which has :part_bytes of bodies, or one larger body.
SELECT max(number) AS number FROM (
  SELECT {number} AS number, sum(m.size) OVER (ORDER BY {number}) / :part_bytes AS part
  {range}
) GROUP BY part ORDER BY 1

-- part: is_settled_before
-- Within a segment, the wall clock may be 4 s off the clock's step, in both directions.
coalesce((SELECT settled_at FROM history WHERE "offset" >= (low + high) / 2 AND "offset" < ends
  ORDER BY "offset" LIMIT 1) < :at_ms - 8000, 1)
