-- To whom each name of a writer belongs, and when it was used last: others are refused, and none is
-- forgotten that was used in the last 30 days.

ALTER TABLE published ADD COLUMN owner TEXT;  -- NULL: the first who writes under it
ALTER TABLE published ADD COLUMN used_ms INTEGER NOT NULL DEFAULT 0;  -- steady ms
ALTER TABLE published ADD COLUMN single_use INTEGER NOT NULL DEFAULT 0;  -- 1: of one publish only
UPDATE published SET used_ms = at_ms - coalesce(
  (SELECT step_ms FROM clock_step ORDER BY number DESC LIMIT 1), 0);
-- What batch writes without txnAppId have left: a new name each.
UPDATE published SET single_use = 1
WHERE version = 0 AND length(app_id) = 38 AND app_id GLOB 'batch-[0-9a-f]*';
