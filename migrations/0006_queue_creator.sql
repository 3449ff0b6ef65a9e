-- Who made each queue: a new one counts with those of the same user, token or address.

ALTER TABLE queue ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
