-- Bounds the number of event rows per message, and gives each reader position an owner.

ALTER TABLE event ADD COLUMN count INTEGER NOT NULL DEFAULT 1;
ALTER TABLE event ADD COLUMN last_at INTEGER;
ALTER TABLE reader ADD COLUMN owner TEXT;

-- A view, because ``store copy`` has to insert rows into the table as they are.
CREATE VIEW event_entry (seq, at_ms, kind, detail) AS SELECT seq, at_ms, kind, detail FROM event;

CREATE TRIGGER event_entry_added INSTEAD OF INSERT ON event_entry BEGIN
  UPDATE event SET count = count + 1, last_at = NEW.at_ms
  WHERE NEW.kind = 'return' AND kind = 'return' AND detail IS NEW.detail
    AND event_id = (SELECT max(event_id) FROM event WHERE seq = NEW.seq);
  INSERT INTO event (seq, at_ms, kind, detail)
  SELECT NEW.seq, NEW.at_ms, NEW.kind, NEW.detail WHERE changes() = 0;
  -- The fifth row counts those between the first 4 and the last 11.
  UPDATE event SET kind = 'more', detail = NULL, (count, last_at) = (
    SELECT event.count + folded.count, coalesce(folded.last_at, folded.at_ms)
    FROM event AS folded WHERE folded.seq = NEW.seq AND folded.kind <> 'restore'
    ORDER BY folded.event_id LIMIT 1 OFFSET 5)
  WHERE event_id = (SELECT event_id FROM event WHERE seq = NEW.seq AND kind <> 'restore'
      ORDER BY event_id LIMIT 1 OFFSET 4)
    AND (SELECT count(*) FROM event WHERE seq = NEW.seq) > 16;
  DELETE FROM event
  WHERE event_id = (SELECT event_id FROM event WHERE seq = NEW.seq AND kind <> 'restore'
      ORDER BY event_id LIMIT 1 OFFSET 5)
    AND (SELECT count(*) FROM event WHERE seq = NEW.seq) > 16;
END;
