-- The creator of each queue: the number of queues is limited per user, token and address.

ALTER TABLE queue ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
