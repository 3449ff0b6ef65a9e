-- part: column_body
(SELECT content FROM body WHERE body.seq = m.seq)

-- part: part_ends
SELECT max(number) AS number FROM (
  SELECT {number} AS number, div(sum(m.size) OVER (ORDER BY {number}), :part_bytes::bigint) AS part
  {range}
) AS summed GROUP BY part ORDER BY 1

-- part: is_settled_before
coalesce((SELECT settled_at FROM history WHERE "offset" >= (low + high) / 2 AND "offset" < ends
  ORDER BY "offset" LIMIT 1) < :at_ms::bigint - 8000, true)
