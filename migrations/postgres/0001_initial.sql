-- The schema of version 0.1.0 on PostgreSQL: the tables of the SQLite database, with the same
-- columns, and what only PostgreSQL needs: regular indexes of the history, and the row by which one
-- of several brokers is active.  Texts by which rows are ordered have the collation "C", which
-- compares bytes as SQLite does.

CREATE TABLE queue (                      -- the queues and their settings
  queue_id BIGINT PRIMARY KEY,            -- its number
  shard INTEGER NOT NULL DEFAULT 0,       -- which epoch row its broker holds; one shard today
  name TEXT COLLATE "C" NOT NULL UNIQUE,  -- 1 to 255 bytes of UTF-8, 259 for NAME.dlq; no control
                                          -- characters except LF
  created_at BIGINT NOT NULL,             -- Unix ms
  created_by TEXT NOT NULL DEFAULT '',    -- an actor of the audit, or the address of a connection;
                                          -- empty: unknown
  payload_policy TEXT,                    -- opaque, observe, envelope; here and in the next five
                                          -- NULL: default
  on_expire TEXT,                         -- history, dead_letter or forward:<queue>
  max_deliveries BIGINT,                  -- charged deliveries; 0: no limit
  ack_timeout_s BIGINT,                   -- seconds; 0: none
  max_messages BIGINT,                    -- live messages; 0: no limit
  max_bytes BIGINT,                       -- bytes of live bodies; 0: no limit
  settings TEXT NOT NULL DEFAULT '{}',    -- all other settings, a JSON object
  live_count BIGINT NOT NULL DEFAULT 0,   -- live messages
  live_bytes BIGINT NOT NULL DEFAULT 0    -- bytes of their bodies
);

CREATE TABLE message (                    -- live messages
  seq BIGINT PRIMARY KEY,                 -- arrival number, never reused
  token BIGINT NOT NULL,                  -- 63 random bits; wire id = hex(seq) || hex(token)
  queue_id BIGINT NOT NULL,               -- of `queue`
  position BIGINT NOT NULL,               -- order in the queue
  state BIGINT NOT NULL CHECK (state IN (0, 1)),  -- 0 ready, 1 dispatched
  ttl_s BIGINT,                           -- seconds, as published; NULL: never expires
  deadline_ms BIGINT,                     -- steady ms; NULL: never expires
  published_at BIGINT NOT NULL,           -- Unix ms
  first_dispatched_at BIGINT,             -- Unix ms
  last_dispatched_at BIGINT,              -- Unix ms
  deliveries BIGINT NOT NULL DEFAULT 0,   -- dispatches
  charged BIGINT NOT NULL DEFAULT 0,      -- those that count for max_deliveries
  size BIGINT NOT NULL,                   -- bytes of the body
  crc BIGINT NOT NULL,                    -- CRC-32 of seq (8 bytes, big-endian) and body
  publisher BIGINT,                       -- client number
  consumer BIGINT,                        -- client number of the last consumer
  urn TEXT, trace_id TEXT COLLATE "C", meta_id TEXT, attempts BIGINT,  -- of an envelope
  source_seq BIGINT,                      -- dead-letter record: the message it is about
  source_queue_id BIGINT,                 -- dead-letter record: where that one died
  source_reason TEXT                      -- dead-letter record: why
);
CREATE INDEX message_deadline ON message (deadline_ms) WHERE state = 0 AND deadline_ms IS NOT NULL;
CREATE INDEX message_place ON message (queue_id, position) WHERE state = 0;
CREATE INDEX message_held ON message (queue_id, position) WHERE state = 1;
CREATE INDEX message_moved ON message (queue_id, seq) WHERE position <> seq;
CREATE INDEX message_source ON message (source_seq) WHERE source_seq IS NOT NULL;
CREATE INDEX message_trace ON message (trace_id, seq) WHERE trace_id IS NOT NULL;

CREATE TABLE body (                       -- the content of messages, live and settled
  seq BIGINT PRIMARY KEY,                 -- of the message
  content BYTEA NOT NULL                  -- as sent; stays until retention takes the history row
);

CREATE TABLE history (                    -- settled messages, one row each
  "offset" BIGINT PRIMARY KEY,            -- gapless, ever increasing
  seq BIGINT NOT NULL,
  token BIGINT NOT NULL,
  queue_id BIGINT NOT NULL,
  position BIGINT NOT NULL,
  outcome BIGINT NOT NULL                 -- 2 acked, 3 expired, 4 dead, 5 deleted
    CHECK (outcome BETWEEN 2 AND 5),
  reason TEXT,                            -- why, where there is more to say
  settled_at BIGINT NOT NULL,             -- Unix ms
  ttl_s BIGINT, deadline_ms BIGINT,
  published_at BIGINT NOT NULL,
  first_dispatched_at BIGINT, last_dispatched_at BIGINT,
  deliveries BIGINT NOT NULL, charged BIGINT NOT NULL,
  size BIGINT NOT NULL, crc BIGINT NOT NULL,
  publisher BIGINT, consumer BIGINT,
  urn TEXT, trace_id TEXT COLLATE "C", meta_id TEXT, attempts BIGINT,
  source_seq BIGINT, source_queue_id BIGINT, source_reason TEXT
);
CREATE INDEX history_seq ON history (seq);
CREATE INDEX history_place ON history (queue_id, outcome, "offset");
CREATE INDEX history_number ON history (queue_id, seq);
CREATE INDEX history_trace ON history (trace_id, seq) WHERE trace_id IS NOT NULL;
CREATE INDEX history_unusual ON history (outcome, "offset") WHERE outcome <> 2;

CREATE TABLE event (                      -- exceptional steps of a message
  event_id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,  -- in the order of time
  seq BIGINT NOT NULL,                    -- of the message
  at_ms BIGINT NOT NULL,                  -- Unix ms
  kind TEXT NOT NULL,                     -- requeue, return, forward, redrive, …
  detail TEXT,                            -- by kind: a queue, a reason, …
  count BIGINT NOT NULL DEFAULT 1,        -- of equal returns in a row; of kind more, of all events
                                          -- between the others
  last_at BIGINT                          -- Unix ms of the last one that is counted; NULL: the row
                                          -- is one event
);
CREATE INDEX event_seq ON event (seq, event_id);

-- Bounds the rows of a message.  A view, because `store copy` inserts rows into the table as they
-- are.
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

CREATE TABLE client (                     -- one row per connection
  client BIGINT PRIMARY KEY,              -- its number; 0 is the admin, pages and HTTP API
  kind TEXT NOT NULL,                     -- tcp, unix, admin, cli
  address TEXT NOT NULL,                  -- where it came from
  opened_at BIGINT NOT NULL,              -- Unix ms
  closed_at BIGINT,                       -- Unix ms; NULL: open, or the broker ended first
  framing TEXT, revision TEXT,            -- seen when it closed
  reason TEXT                             -- why it closed
);
INSERT INTO client (client, kind, address, opened_at) VALUES (0, 'admin', 'admin', 0);
CREATE INDEX client_closed ON client (closed_at);

-- Keys of consecutive publishes share a row.
CREATE TABLE receipt (                    -- keys of confirmed publishes, oldest first
  n BIGINT PRIMARY KEY,                   -- number of the row's last key; keys have no gaps
  queue_id BIGINT NOT NULL,               -- of `queue`
  seq BIGINT NOT NULL,                    -- message stored under the first key; the others follow
  at_ms BIGINT NOT NULL,                  -- steady ms
  key_bytes BIGINT NOT NULL,              -- length of each key, 1 to 64
  keys BYTEA NOT NULL                     -- the keys, one after the other
);

CREATE TABLE counter (                    -- one number each
  name TEXT PRIMARY KEY,                  -- next_number, placed_upto, …
  value BIGINT NOT NULL                   -- what it is at
);

CREATE TABLE "user" (                     -- who may log in
  user_id BIGINT PRIMARY KEY,             -- its number
  name TEXT NOT NULL UNIQUE,              -- 1 to 64 characters
  password TEXT NOT NULL,                 -- argon2id, in its own encoding
  role TEXT NOT NULL                      -- viewer, operator or admin
    CHECK (role IN ('viewer', 'operator', 'admin')),
  queues TEXT NOT NULL DEFAULT '[]',      -- globs, a JSON list; empty: all queues
  created_at BIGINT NOT NULL,             -- Unix ms
  last_login_at BIGINT                    -- Unix ms; NULL: never
);

CREATE TABLE token (                      -- tokens of programs
  token_id BIGINT PRIMARY KEY,            -- its number
  name TEXT NOT NULL UNIQUE,              -- its name
  sha256 BYTEA NOT NULL UNIQUE,           -- of the token; the token itself is shown once
  role TEXT NOT NULL                      -- metrics, viewer, operator or admin
    CHECK (role IN ('metrics', 'viewer', 'operator', 'admin')),
  queues TEXT NOT NULL DEFAULT '[]',      -- globs, a JSON list; empty: all queues
  created_at BIGINT NOT NULL,             -- Unix ms
  created_by TEXT NOT NULL,               -- who created it
  expires_at BIGINT,                      -- NULL: never
  last_used_at BIGINT                     -- Unix ms; NULL: never
);

CREATE TABLE session (                    -- logins of browsers
  session_id BIGINT PRIMARY KEY,          -- its number
  sha256 BYTEA NOT NULL UNIQUE,           -- of the cookie
  user_id BIGINT NOT NULL,                -- of `user`
  csrf TEXT NOT NULL,                     -- token of its forms
  created_at BIGINT NOT NULL,             -- Unix ms
  seen_at BIGINT NOT NULL,                -- Unix ms, written at most every five minutes
  expires_at BIGINT NOT NULL,             -- Unix ms, whatever happens
  address TEXT NOT NULL,                  -- where it came from
  agent TEXT NOT NULL                     -- what the browser calls itself
);
CREATE INDEX session_of_user ON session (user_id);

-- Texts have bounds in bytes, because any of them may come from a request, and an index refuses
-- texts of 2,704 bytes.
CREATE TABLE audit (                      -- who did what; rows are only appended
  audit_id BIGINT PRIMARY KEY,            -- its number
  at_ms BIGINT NOT NULL,                  -- Unix ms
  actor TEXT NOT NULL                     -- who: a user, a token, or the machine itself; nobody: a
                                          -- caller without an identity was refused
    CHECK (octet_length(actor) <= 512),
  source TEXT NOT NULL                    -- ui, http or cli
    CHECK (octet_length(source) <= 512),
  address TEXT NOT NULL                   -- where it came from
    CHECK (octet_length(address) <= 512),
  action TEXT NOT NULL                    -- queue.purge, message.delete, …
    CHECK (octet_length(action) <= 512),
  target TEXT NOT NULL                    -- queue, message id, user, …
    CHECK (octet_length(target) <= 1024),
  count BIGINT NOT NULL,                  -- of messages, queues, … it was about
  reason TEXT NOT NULL                    -- what the actor gave as reason
    CHECK (octet_length(reason) <= 4000),
  result TEXT NOT NULL                    -- done, running, interrupted, cancelled, or a refusal
    CHECK (octet_length(result) <= 512),
  detail TEXT NOT NULL                    -- JSON or empty: before and after of settings
    CHECK (octet_length(detail) <= 32768),
  request_id TEXT NOT NULL                -- as in the log and in the answer
    CHECK (octet_length(request_id) <= 512)
);
CREATE INDEX audit_target ON audit (target, audit_id);
CREATE INDEX audit_identity ON audit ((actor = 'nobody'), audit_id);

CREATE TABLE rollup (                     -- how each queue went, in spans of equal length
  span_s BIGINT NOT NULL,                 -- 60 or 900
  queue_id BIGINT NOT NULL,               -- 0: all without rows of their own, -1: all, -2: all .dlq
  at_s BIGINT NOT NULL,                   -- Unix seconds, the beginning
  published BIGINT NOT NULL, dispatched BIGINT NOT NULL,  -- what happened within
  redelivered BIGINT NOT NULL, acked BIGINT NOT NULL,  -- what happened within
  requeued BIGINT NOT NULL, expired BIGINT NOT NULL,  -- what happened within
  dead BIGINT NOT NULL, deleted BIGINT NOT NULL,  -- what happened within
  ready BIGINT NOT NULL, held BIGINT NOT NULL, bytes BIGINT NOT NULL,  -- at the end
  oldest_age_ms BIGINT NOT NULL,          -- of the oldest ready message, at the end
  wait BYTEA, hold BYTEA,                 -- histograms; NULL: nothing was measured
  PRIMARY KEY (span_s, queue_id, at_s)
);
CREATE INDEX rollup_time ON rollup (span_s, at_s);

CREATE TABLE saved (                      -- what people saved under a name
  kind TEXT NOT NULL,                     -- view, template or label
  name TEXT COLLATE "C" NOT NULL,         -- its name
  content TEXT NOT NULL,                  -- JSON
  saved_at BIGINT NOT NULL,               -- Unix ms
  saved_by TEXT NOT NULL,                 -- who
  PRIMARY KEY (kind, name)
);

CREATE TABLE start (                      -- one row per start of the broker
  start_id BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,  -- its number
  at_ms BIGINT NOT NULL,                  -- Unix ms
  version TEXT NOT NULL,                  -- of the broker
  was_clean BIGINT NOT NULL,              -- the stop before it, 0 or 1
  down_from_ms BIGINT,                    -- when the broker was last seen; NULL: the first start
  report TEXT NOT NULL,                   -- JSON: what was found, put back, checked
  dismissed_by TEXT                       -- who has seen its report
);

CREATE TABLE meta (                       -- one text each
  name TEXT PRIMARY KEY,                  -- history_id: 32 hex digits, made at the first start
  value TEXT NOT NULL                     -- its text
);

CREATE TABLE subscription (               -- holds messages of one queue, without a connection
  subscription_id BIGINT PRIMARY KEY,     -- its number
  name TEXT COLLATE "C" NOT NULL UNIQUE,  -- its name
  queue_id BIGINT NOT NULL,               -- of `queue`
  next_claim BIGINT NOT NULL,             -- claims are numbered from 1; below it all are given
  acked_upto BIGINT NOT NULL,             -- the last claim that was acknowledged or released
  created_at BIGINT NOT NULL              -- Unix ms
);

-- A claimed message is dispatched (state 1).  A number is not given twice.
CREATE TABLE claim (                      -- messages that a subscription holds, until they settle
                                          -- or are released
  subscription_id BIGINT NOT NULL,        -- of `subscription`
  claim BIGINT NOT NULL,                  -- its number
  seq BIGINT NOT NULL,                    -- of the message
  claimed_at BIGINT NOT NULL,             -- Unix ms
  PRIMARY KEY (subscription_id, claim)
);
CREATE UNIQUE INDEX claim_seq ON claim (seq);

CREATE TABLE stage (                      -- rows that wait for their publish, by token
  stage_id BIGINT PRIMARY KEY,            -- its number
  token TEXT UNIQUE,                      -- NULL: published or dropped, its rows are being removed
  created_at BIGINT NOT NULL,             -- Unix ms
  until_ms BIGINT NOT NULL,               -- steady ms: dropped then
  "rows" BIGINT NOT NULL,                 -- how many
  bytes BIGINT NOT NULL,                  -- of the bodies
  is_whole BIGINT NOT NULL                -- 1: its last row is there
);

CREATE TABLE stage_part (                 -- what is staged for each queue
  stage_id BIGINT NOT NULL,               -- of `stage`
  queue_id BIGINT NOT NULL,               -- of `queue`
  "rows" BIGINT NOT NULL,                 -- how many
  bytes BIGINT NOT NULL,                  -- of the bodies
  bad_rows BIGINT NOT NULL,               -- of them: dead at once when they are published
  bad_bytes BIGINT NOT NULL,              -- of their bodies
  least_ttl_s BIGINT,                     -- NULL: none expires
  policy TEXT NOT NULL,                   -- by which they were validated; empty: the queue
                                          -- validates nothing
  PRIMARY KEY (stage_id, queue_id)
);

CREATE TABLE stage_row (                  -- what is staged, row by row
  row_id BIGINT PRIMARY KEY,              -- stage_id << 17 | its place among the rows of the token
  queue_id BIGINT NOT NULL,               -- of `queue`
  ttl_s BIGINT,                           -- from the publish on; NULL: never expires
  token BIGINT NOT NULL,                  -- 63 random bits, of the message
  urn TEXT, trace_id TEXT, meta_id TEXT, attempts BIGINT,  -- of an envelope
  reason TEXT, detail TEXT,               -- of the verdict; NULL: it may reach a consumer
  record_id BYTEA, record BYTEA,          -- its dead-letter record, and the id that stands in it
  content BYTEA NOT NULL                  -- the body
);

CREATE TABLE published (                  -- the highest version of each writer that publishes once
  app_id TEXT COLLATE "C" PRIMARY KEY,    -- who publishes: a query, or `txnAppId`
  version BIGINT NOT NULL,                -- what it published last
  at_ms BIGINT NOT NULL,                  -- Unix ms
  "rows" BIGINT NOT NULL,                 -- of that version
  owner TEXT,                             -- a user; NULL: the first who writes under it
  used_ms BIGINT NOT NULL,                -- steady ms: when it was published or repeated last
  single_use BIGINT NOT NULL              -- 1: of one publish only, so that it may be forgotten
                                          -- earlier
);

CREATE TABLE reader (                     -- how far those are that follow the history
  name TEXT COLLATE "C" PRIMARY KEY,      -- its name
  "offset" BIGINT NOT NULL,               -- done up to it
  at_ms BIGINT NOT NULL,                  -- Unix ms: when it said so
  owner TEXT                              -- who named it first; NULL: the next user who reports
);

CREATE TABLE clock_step (                 -- the wall clock was set; the first row: as it was found
  number BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,  -- in the order of the steps
  from_offset BIGINT NOT NULL,            -- what is settled from here on
  at_ms BIGINT NOT NULL,                  -- steady ms
  step_ms BIGINT NOT NULL                 -- the wall clock less the steady scale, from then on
);

-- While an old snapshot is held, all versions of a row that changes often stay, and an index leads
-- through them.  So such rows are found by their place, which the session keeps in a setting.

CREATE FUNCTION counter_value(my_name TEXT) RETURNS BIGINT STABLE LANGUAGE plpgsql AS $$
DECLARE
  place TID := nullif(current_setting('phpmq.counter_' || my_name, true), '');
  current_value BIGINT;
BEGIN
  SELECT value INTO current_value FROM counter WHERE ctid = place AND name = my_name;
  IF current_value IS NULL THEN
    SELECT value INTO current_value FROM counter WHERE name = my_name;
  END IF;
  RETURN current_value;
END
$$;

-- Sets a counter, or adds to it.  Returns no rows.
CREATE FUNCTION change_counter(my_name TEXT, number BIGINT, is_added BOOLEAN) RETURNS SETOF BIGINT
LANGUAGE plpgsql AS $$
DECLARE
  slot TEXT := 'phpmq.counter_' || my_name;
  place TID := nullif(current_setting(slot, true), '');
BEGIN
  UPDATE counter SET value = CASE WHEN is_added THEN value ELSE 0 END + number
    WHERE ctid = place AND name = my_name RETURNING ctid INTO place;
  IF place IS NULL THEN
    INSERT INTO counter (name, value) VALUES (my_name, number)
    ON CONFLICT (name) DO UPDATE
      SET value = CASE WHEN is_added THEN counter.value ELSE 0 END + excluded.value
    RETURNING ctid INTO place;
  END IF;
  PERFORM set_config(slot, place::text, false);
END
$$;

-- The number of the oldest receipt, or NULL.  Receipts are removed in order.
CREATE FUNCTION oldest_receipt() RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE
  oldest BIGINT;
BEGIN
  SELECT min(n) INTO oldest FROM receipt
    WHERE n >= coalesce(nullif(current_setting('phpmq.receipt', true), ''), '0')::bigint;
  PERFORM set_config('phpmq.receipt', oldest::text, false);
  RETURN oldest;
END
$$;

CREATE VIEW line (next_number) AS SELECT greatest(
  coalesce(counter_value('next_number'), 1),
  coalesce((SELECT max(seq) FROM body), 0) + 1
);

CREATE TABLE epoch (                      -- the active broker of each shard
  shard INTEGER PRIMARY KEY,
  epoch BIGINT NOT NULL,                  -- raised by each broker that takes over
  batch BIGINT NOT NULL,                  -- number of the last batch stored in this epoch
  seen_at TIMESTAMPTZ NOT NULL,           -- when the active broker last wrote
  is_released BOOLEAN NOT NULL,           -- whether it has stopped cleanly
  broker TEXT NOT NULL                    -- JSON: its version, host, pid and relay address
) WITH (fillfactor = 10);
INSERT INTO epoch VALUES (0, 0, 0, now(), true, '{}');

-- The first statement of each batch.  It raises an error if another broker has taken over, so that
-- the statements behind it in the pipeline, COMMIT included, have no effect.  The row is found by
-- its place, because an index would lead through all versions that an old snapshot still keeps.
CREATE FUNCTION begin_batch(my_shard INTEGER, my_epoch BIGINT, my_batch BIGINT, place TID)
RETURNS TID LANGUAGE plpgsql AS $$
DECLARE
  new_place TID;
BEGIN
  UPDATE epoch SET batch = my_batch, seen_at = clock_timestamp()
    WHERE ctid = place AND shard = my_shard AND epoch = my_epoch RETURNING ctid INTO new_place;
  IF new_place IS NULL THEN
    UPDATE epoch SET batch = my_batch, seen_at = clock_timestamp()
      WHERE shard = my_shard AND epoch = my_epoch RETURNING ctid INTO new_place;
  END IF;
  IF new_place IS NULL THEN
    RAISE EXCEPTION 'another broker has taken over from epoch %', my_epoch
      USING ERRCODE = 'PMQ01';
  END IF;
  RETURN new_place;
END
$$;

-- The row of the epoch.  It is looked for from where this session last found it: while an old
-- snapshot is held, newer versions of the row follow, and the older ones cannot be removed.
CREATE FUNCTION read_epoch(my_shard INTEGER) RETURNS SETOF epoch LANGUAGE plpgsql AS $$
DECLARE
  latest RECORD;
  place TID := nullif(current_setting('phpmq.epoch', true), '');
BEGIN
  SELECT ctid AS place, candidate AS epoch_row INTO latest FROM epoch AS candidate
    WHERE ctid >= place AND shard + 0 = my_shard;  -- the index has all versions
  IF latest.place IS NULL THEN
    SELECT ctid AS place, candidate AS epoch_row INTO latest FROM epoch AS candidate
      WHERE shard = my_shard;
  END IF;
  PERFORM set_config('phpmq.epoch', latest.place::text, false);
  RETURN NEXT latest.epoch_row;
END
$$;

-- Sets the number and size of live messages of queues.  As with the row of the epoch, each row is
-- found by its place, which the session keeps for some hundred queues.  Returns no rows.
CREATE FUNCTION update_queues(ids BIGINT[], counts BIGINT[], sizes BIGINT[]) RETURNS SETOF BIGINT
LANGUAGE plpgsql AS $$
DECLARE
  slot TEXT;
  place TID;
BEGIN
  FOR at IN 1 .. cardinality(ids) LOOP
    slot := 'phpmq.queue_' || ids[at] % 256;
    place := nullif(current_setting(slot, true), '');
    UPDATE queue SET live_count = counts[at], live_bytes = sizes[at]
      WHERE ctid = place AND queue_id = ids[at] RETURNING ctid INTO place;
    IF place IS NULL THEN
      UPDATE queue SET live_count = counts[at], live_bytes = sizes[at]
        WHERE queue_id = ids[at] RETURNING ctid INTO place;
    END IF;
    PERFORM set_config(slot, place::text, false);
  END LOOP;
END
$$;

CREATE TABLE relay_secret (               -- with which brokers authenticate to each other
  secret_id INTEGER PRIMARY KEY CHECK (secret_id = 1),
  key BYTEA NOT NULL,                     -- 32 random bytes
  certificate TEXT NOT NULL,              -- PEM, for TLS between brokers
  private_key TEXT NOT NULL               -- PEM
);

CREATE TABLE copy_state (                 -- while a copy is incomplete, or the data is elsewhere
  role TEXT PRIMARY KEY CHECK (role IN ('source', 'target')),
  content TEXT NOT NULL                   -- JSON; a broker that finds a row does not start
);

-- CRC-32 (as zlib's) of the number of a message, as 8 bytes, and its body; see model.checksum.
CREATE FUNCTION checksum(seq BIGINT, content BYTEA) RETURNS BIGINT
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  content_with_seq BYTEA := int8send(seq) || content;
  lookup BIGINT[] := ARRAY[
    0, 1996959894, 3993919788, 2567524794, 124634137, 1886057615, 3915621685, 2657392035,
    249268274, 2044508324, 3772115230, 2547177864, 162941995, 2125561021, 3887607047,
    2428444049, 498536548, 1789927666, 4089016648, 2227061214, 450548861, 1843258603,
    4107580753, 2211677639, 325883990, 1684777152, 4251122042, 2321926636, 335633487,
    1661365465, 4195302755, 2366115317, 997073096, 1281953886, 3579855332, 2724688242,
    1006888145, 1258607687, 3524101629, 2768942443, 901097722, 1119000684, 3686517206,
    2898065728, 853044451, 1172266101, 3705015759, 2882616665, 651767980, 1373503546,
    3369554304, 3218104598, 565507253, 1454621731, 3485111705, 3099436303, 671266974,
    1594198024, 3322730930, 2970347812, 795835527, 1483230225, 3244367275, 3060149565,
    1994146192, 31158534, 2563907772, 4023717930, 1907459465, 112637215, 2680153253,
    3904427059, 2013776290, 251722036, 2517215374, 3775830040, 2137656763, 141376813,
    2439277719, 3865271297, 1802195444, 476864866, 2238001368, 4066508878, 1812370925,
    453092731, 2181625025, 4111451223, 1706088902, 314042704, 2344532202, 4240017532,
    1658658271, 366619977, 2362670323, 4224994405, 1303535960, 984961486, 2747007092,
    3569037538, 1256170817, 1037604311, 2765210733, 3554079995, 1131014506, 879679996,
    2909243462, 3663771856, 1141124467, 855842277, 2852801631, 3708648649, 1342533948,
    654459306, 3188396048, 3373015174, 1466479909, 544179635, 3110523913, 3462522015,
    1591671054, 702138776, 2966460450, 3352799412, 1504918807, 783551873, 3082640443,
    3233442989, 3988292384, 2596254646, 62317068, 1957810842, 3939845945, 2647816111,
    81470997, 1943803523, 3814918930, 2489596804, 225274430, 2053790376, 3826175755,
    2466906013, 167816743, 2097651377, 4027552580, 2265490386, 503444072, 1762050814,
    4150417245, 2154129355, 426522225, 1852507879, 4275313526, 2312317920, 282753626,
    1742555852, 4189708143, 2394877945, 397917763, 1622183637, 3604390888, 2714866558,
    953729732, 1340076626, 3518719985, 2797360999, 1068828381, 1219638859, 3624741850,
    2936675148, 906185462, 1090812512, 3747672003, 2825379669, 829329135, 1181335161,
    3412177804, 3160834842, 628085408, 1382605366, 3423369109, 3138078467, 570562233,
    1426400815, 3317316542, 2998733608, 733239954, 1555261956, 3268935591, 3050360625,
    752459403, 1541320221, 2607071920, 3965973030, 1969922972, 40735498, 2617837225,
    3943577151, 1913087877, 83908371, 2512341634, 3803740692, 2075208622, 213261112,
    2463272603, 3855990285, 2094854071, 198958881, 2262029012, 4057260610, 1759359992,
    534414190, 2176718541, 4139329115, 1873836001, 414664567, 2282248934, 4279200368,
    1711684554, 285281116, 2405801727, 4167216745, 1634467795, 376229701, 2685067896,
    3608007406, 1308918612, 956543938, 2808555105, 3495958263, 1231636301, 1047427035,
    2932959818, 3654703836, 1088359270, 936918000, 2847714899, 3736837829, 1202900863,
    817233897, 3183342108, 3401237130, 1404277552, 615818150, 3134207493, 3453421203,
    1423857449, 601450431, 3009837614, 3294710456, 1567103746, 711928724, 3020668471,
    3272380065, 1510334235, 755167117
  ];
  crc BIGINT := 4294967295;
BEGIN
  FOR at IN 0 .. length(content_with_seq) - 1 LOOP
    crc := (crc >> 8) # lookup[((crc # get_byte(content_with_seq, at)) & 255) + 1];
  END LOOP;
  RETURN crc # 4294967295;
END
$$;

-- The numbers in a JSON array, which is how lists are passed to statements.
CREATE FUNCTION ids(list TEXT) RETURNS BIGINT[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT translate(list, '[]', '{}')::BIGINT[] $$;

-- The other functions are for the search.  They return what SQLite's JSON functions and GLOB do, so
-- that a search finds the same messages on both engines.

-- Convert a glob, with literal characters in brackets, to a pattern of LIKE or to a regular
-- expression.  LIKE is faster, but it would search a large text for seconds without interruption.
CREATE FUNCTION like_pattern(glob TEXT) RETURNS TEXT
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT regexp_replace(regexp_replace(regexp_replace(regexp_replace(glob,
    '([\\%_])', '\\\1', 'g'), '(?<!\[)\*', '%', 'g'), '(?<!\[)\?', '_', 'g'), '\[(.)\]', '\1', 'g')
$$;
CREATE FUNCTION regex_pattern(glob TEXT) RETURNS TEXT
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT '^' || regexp_replace(regexp_replace(regexp_replace(glob,
    '([\\^$.|+(){}])', '\\\1', 'g'), '(?<!\[)\*', '.*', 'g'), '(?<!\[)\?', '.', 'g') || '$'
$$;

-- A body as text; each byte that is not UTF-8 becomes U+FFFD.  The bytes of a character that is
-- valid are matched as LATIN1, in which every byte is a character.
CREATE FUNCTION readable(content BYTEA) RETURNS TEXT
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT coalesce(string_agg(
    coalesce(convert_from(convert_to(match[1], 'LATIN1'), 'UTF8'), U&'\FFFD'), '' ORDER BY at), '')
  FROM regexp_matches(convert_from(content, 'LATIN1'),
    '((?:[\u0001-\u007f]|[\u00c2-\u00df][\u0080-\u00bf]|\u00e0[\u00a0-\u00bf][\u0080-\u00bf]'
    '|[\u00e1-\u00ec\u00ee\u00ef][\u0080-\u00bf]{2}|\u00ed[\u0080-\u009f][\u0080-\u00bf]'
    '|\u00f0[\u0090-\u00bf][\u0080-\u00bf]{2}|[\u00f1-\u00f3][\u0080-\u00bf]{3}'
    '|\u00f4[\u0080-\u008f][\u0080-\u00bf]{2})+)|.', 'g') WITH ORDINALITY AS piece (match, at)
$$;

-- The steps of a path such as $."items"[0]: .items and 0.
CREATE FUNCTION json_steps(path TEXT) RETURNS TEXT[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT array_agg(coalesce('.' || match[1], match[2]) ORDER BY at)
  FROM regexp_matches(path, '\."([^"]*)"|\[(\d+)\]', 'g') WITH ORDINALITY AS step (match, at)
$$;
CREATE FUNCTION json_walk(node JSON, steps TEXT[]) RETURNS JSON
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  step TEXT;
BEGIN
  FOREACH step IN ARRAY steps LOOP
    IF starts_with(step, '.') AND json_typeof(node) = 'object' THEN  -- several: take the first
      node := (SELECT value FROM json_each(node) WHERE key = substr(step, 2) LIMIT 1);
    ELSIF NOT starts_with(step, '.') AND json_typeof(node) = 'array' THEN
      node := node -> step::INTEGER;
    ELSE
      RETURN NULL;
    END IF;
  END LOOP;
  RETURN node;
END
$$;

-- The member of a body at a path; NULL if the body is not JSON or has no such member.  PostgreSQL
-- refuses \u0000, half surrogate pairs and bytes that are not UTF-8; they are replaced then.
CREATE FUNCTION json_member(content BYTEA, steps TEXT[]) RETURNS JSON
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  IF position('\x00' IN content) > 0
      OR substr(ltrim(content, '\x20090a0d'), 1, 1) NOT IN ('[', '{') THEN
    RETURN NULL;
  END IF;
  BEGIN
    RETURN json_walk(convert_from(content, 'UTF8')::JSON, steps);
  EXCEPTION WHEN data_exception OR statement_too_complex THEN  -- try what follows
  END;
  BEGIN
    RETURN json_walk(regexp_replace(replace(readable(content), '\\', '\u005c'),
      '\\u0000|\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]..',
      '\\ufffd', 'g')::JSON, steps);
  EXCEPTION WHEN data_exception OR statement_too_complex THEN
    RETURN NULL;
  END;
END
$$;

-- A number; NULL for what is no number.  Exponents of four digits are beyond NUMERIC or FLOAT8.
CREATE FUNCTION json_number(value JSON) RETURNS NUMERIC
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  written TEXT := value;
BEGIN
  IF json_typeof(value) <> 'number' OR length(written) > 16000 THEN
    RETURN NULL;
  ELSIF written !~ '[eE][-+]?0*[1-9]\d{3}' THEN
    RETURN written;
  ELSIF written ~ '[eE]-' THEN
    RETURN 0;
  END IF;
  RETURN CASE WHEN starts_with(written, '-') THEN '-Infinity' ELSE 'Infinity' END;
END
$$;

-- A string, or a number as SQLite writes it; NULL for anything else.
CREATE FUNCTION json_scalar(value JSON) RETURNS TEXT
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET extra_float_digits = 0 AS $$
DECLARE
  number NUMERIC;
BEGIN
  IF json_typeof(value) = 'string' THEN
    RETURN value #>> '{}';
  END IF;
  number := json_number(value);
  IF value::TEXT !~ '[.eE]' AND number BETWEEN -9223372036854775808 AND 9223372036854775807 THEN
    RETURN number::BIGINT;
  ELSIF abs(number) > 1.7976931348623157e308 THEN
    RETURN CASE WHEN number < 0 THEN '-Inf' ELSE 'Inf' END;
  ELSIF abs(number) < 1e-307 THEN
    RETURN '0.0';
  END IF;
  RETURN regexp_replace(number::FLOAT8::TEXT, '^(-?\d+)(e|$)', '\1.0\2');
END
$$;
