-- Subscriptions and what they hold.

-- name: insert
-- rows: subscription_id, claim, seq, claimed_at
INSERT INTO claim (subscription_id, claim, seq, claimed_at) VALUES {rows:(?,?,?,?)};

-- name: remove
-- rows: seq
-- index: claim_seq
DELETE FROM claim WHERE seq IN ({rows:?});

-- name: insert_subscription
-- parameters: subscription_id, name, queue_id, created_at
INSERT INTO subscription (subscription_id, name, queue_id, next_claim, acked_upto, created_at)
VALUES (:subscription_id, :name, :queue_id, 1, 0, :created_at);

-- name: update_subscription
-- parameters: queue_id, next_claim, acked_upto, subscription_id
-- index: INTEGER PRIMARY KEY
UPDATE subscription SET queue_id = :queue_id, next_claim = :next_claim, acked_upto = :acked_upto WHERE subscription_id = :subscription_id;

-- name: delete_subscription
-- parameters: subscription_id
-- index: INTEGER PRIMARY KEY
DELETE FROM subscription WHERE subscription_id = :subscription_id;

-- name: subscriptions
-- At start.
-- columns: subscription_id, name, queue_id, next_claim, acked_upto
SELECT subscription_id, name, queue_id, next_claim, acked_upto FROM subscription;

-- name: held
-- At start: what is claimed, by queue.
-- columns: queue_id, messages, bytes
SELECT message.queue_id, count(*), sum(message.size)
FROM claim CROSS JOIN message USING (seq) GROUP BY message.queue_id;

-- name: overview
-- Subscriptions with what they hold, by name; for pages.
-- parameters: name (NULL: all)
-- columns: name, queue_id, queue name (NULL: forgotten), acked_upto, hi, created_at, claimed
--   messages, their bytes, claimed_at of the oldest
SELECT subscription.name, subscription.queue_id,
  (SELECT name FROM queue WHERE queue.queue_id = subscription.queue_id),
  acked_upto, next_claim - 1, subscription.created_at, count(claim.claim),
  coalesce(sum(message.size), 0), min(claim.claimed_at)
FROM subscription
LEFT JOIN claim ON claim.subscription_id = subscription.subscription_id
LEFT JOIN message ON message.seq = claim.seq
WHERE coalesce(:name, subscription.name) = subscription.name
GROUP BY subscription.subscription_id ORDER BY subscription.name;

-- name: readers
-- parameters:
-- columns: name, offset, at_ms
SELECT name, "offset", at_ms FROM reader ORDER BY name;

-- name: record_reader
-- parameters: name, offset, at_ms
INSERT INTO reader (name, "offset", at_ms) VALUES (:name, :offset, :at_ms)
ON CONFLICT (name) DO UPDATE SET "offset" = excluded."offset", at_ms = excluded.at_ms;

-- name: trim_readers
-- Only those that were heard of last stay.
-- parameters: most
DELETE FROM reader WHERE name IN (
  SELECT name FROM reader ORDER BY at_ms DESC, name LIMIT -1 OFFSET :most);

-- name: make_history_id
-- At the first start.
INSERT INTO meta (name, value) VALUES ('history_id', lower(hex(randomblob(16))))
ON CONFLICT (name) DO NOTHING;

-- name: renew_history_id
-- After another history was copied back: offsets of readers are worth nothing any more.
INSERT INTO meta (name, value) VALUES ('history_id', lower(hex(randomblob(16))))
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
