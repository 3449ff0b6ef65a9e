-- part: column_body
(SELECT CAST(content AS BLOB) FROM body WHERE body.seq = m.seq)
