-- part: column_body
(SELECT content FROM body WHERE body.seq = m.seq)
