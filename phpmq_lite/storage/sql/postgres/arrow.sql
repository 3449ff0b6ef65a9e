-- part: column_body
(SELECT content FROM body WHERE body.seq = m.seq)

-- part: part_ends
SELECT max(number) AS number FROM (
  SELECT {number} AS number, div(sum(m.size) OVER (ORDER BY {number}), :part_bytes::bigint) AS part
  {range}
) AS summed GROUP BY part ORDER BY 1
