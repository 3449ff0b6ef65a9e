-- The owner of each app_id, and when it was used last: other publishers are refused, and an app_id
-- that was used in the last 30 days is not deleted.

ALTER TABLE published ADD COLUMN owner TEXT;  -- NULL: the next publisher
ALTER TABLE published ADD COLUMN used_ms INTEGER NOT NULL DEFAULT 0;  -- steady ms
ALTER TABLE published ADD COLUMN single_use INTEGER NOT NULL DEFAULT 0;  -- 1: for one publish only
UPDATE published SET used_ms = at_ms - coalesce(
  (SELECT step_ms FROM clock_step ORDER BY number DESC LIMIT 1), 0);
-- Batch writes without txnAppId used a new app_id each.
UPDATE published SET single_use = 1
WHERE version = 0 AND length(app_id) = 38 AND app_id GLOB 'batch-[0-9a-f]*';
