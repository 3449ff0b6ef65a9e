-- Bounds the number of event rows per message, and gives each reader position an owner.

ALTER TABLE event ADD COLUMN count BIGINT NOT NULL DEFAULT 1;
ALTER TABLE event ADD COLUMN last_at BIGINT;
ALTER TABLE reader ADD COLUMN owner TEXT;

-- A view, because ``store copy`` has to insert rows into the table as they are.
CREATE VIEW event_entry (seq, at_ms, kind, detail) AS SELECT seq, at_ms, kind, detail FROM event;

CREATE FUNCTION add_event() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  folded event;
BEGIN
  UPDATE event SET count = count + 1, last_at = NEW.at_ms
    WHERE NEW.kind = 'return' AND kind = 'return' AND detail IS NOT DISTINCT FROM NEW.detail
      AND event_id = (SELECT max(event_id) FROM event WHERE seq = NEW.seq);
  IF FOUND THEN
    RETURN NEW;
  END IF;
  INSERT INTO event (seq, at_ms, kind, detail) VALUES (NEW.seq, NEW.at_ms, NEW.kind, NEW.detail);
  IF (SELECT count(*) FROM event WHERE seq = NEW.seq) > 16 THEN
    -- The fifth row counts those between the first 4 and the last 11.
    SELECT * INTO folded FROM event WHERE seq = NEW.seq AND kind <> 'restore'
      ORDER BY event_id LIMIT 1 OFFSET 5;
    UPDATE event SET kind = 'more', detail = NULL, count = event.count + folded.count,
        last_at = coalesce(folded.last_at, folded.at_ms)
      WHERE event_id = (SELECT event_id FROM event WHERE seq = NEW.seq AND kind <> 'restore'
        ORDER BY event_id LIMIT 1 OFFSET 4);
    DELETE FROM event WHERE event_id = folded.event_id;
  END IF;
  RETURN NEW;
END
$$;

CREATE TRIGGER event_entry_added INSTEAD OF INSERT ON event_entry
FOR EACH ROW EXECUTE FUNCTION add_event();
