-- In a condition, {p} is the parameter of a path.

-- part: settled_queues
-- Settled messages in certain queues, by offset.
-- index: history_place
SELECT m."offset" AS place, {columns}
FROM history AS m {join}
WHERE m.queue_id = ANY (ids(:queues)) AND m.outcome = ANY (ids(:outcomes))
  AND m."offset" > :low AND m."offset" < :high

-- part: settled_numbers
-- Settled messages in certain queues, by number.
-- index: history_number
SELECT m.seq AS place, {columns}
FROM history AS m {join}
WHERE m.queue_id {these} AND m.seq > :low AND m.seq < :high

-- part: alive_traces
-- twin: settled_traces
-- Live or settled messages with certain traces, by number.
-- index: message_trace, or history_trace
SELECT m.seq AS place, {columns}
FROM {message | history} AS m {join}
WHERE m.trace_id IN ({traces}) AND m.seq > :low AND m.seq < :high

-- part: in_outcomes
m.outcome = ANY (ids(:outcomes))

-- part: glob
LIKE like_pattern

-- part: reason
-- index: message_source
coalesce(m.{why} LIKE like_pattern(:{v}), false)
  OR coalesce(m.source_reason LIKE like_pattern(:{v}), false)
  OR coalesce(m.source_reason, m.{why}) IN {reasons} AND EXISTS (
    SELECT 1
    FROM (
      SELECT m.seq WHERE m.source_reason IS NOT NULL
      UNION ALL
      SELECT record.seq FROM message AS record
      WHERE record.source_seq = m.seq AND record.source_reason = m.{why}
    ) AS about
    JOIN body AS said ON said.seq = about.seq
    WHERE left(json_scalar(json_member(said.content, '{.dead_letter,.error}')), 512)
      LIKE like_pattern(:{v})
  )

-- part: text
position(:{v} IN b.content) > 0

-- part: is_json
-- A body that is not JSON has no members.
({then})

-- part: member
-- A member with this text; numbers are compared as SQLite writes them.  LIKE cannot be interrupted,
-- so large bodies use a regular expression instead.
CASE WHEN m.size <= 16384
  THEN json_scalar(json_member(b.content, json_steps(:{p}))) LIKE like_pattern(:{v})
  ELSE json_scalar(json_member(b.content, json_steps(:{p}))) ~ regex_pattern(:{v}) END

-- part: member_large
json_member(b.content, json_steps(:{p}))::text = :{v}

-- part: member_word
json_scalar(json_member(b.content, json_steps(:{p}))) = :{v}
  OR json_member(b.content, json_steps(:{p}))::text = :{v}

-- part: member_compared
json_number(json_member(b.content, json_steps(:{p}))) {sign} :{v}

-- part: least
least

-- part: greatest
greatest

-- part: indexed_upto
coalesce((SELECT "offset" FROM history ORDER BY "offset" DESC LIMIT 1), 0)

-- part: untraced
0

-- part: state_seqs
(
    SELECT position FROM message
    WHERE state = STATE AND queue_id = wanted.queue_id
      AND position > :low AND position < :high AND position = seq
    ORDER BY position DESC LIMIT 1
  )

-- name: next_seq
-- index: history_number
-- index: message_place
-- index: message_held
-- index: message_scheduled
-- index: message_blocked
-- index: message_moved
SELECT max(seq) FROM unnest(ids(:queues)) AS wanted (queue_id), LATERAL (
  (
    SELECT seq FROM history
    WHERE queue_id = wanted.queue_id AND seq > :low AND seq < :high
    ORDER BY seq DESC LIMIT 1
  )
  UNION ALL
  {each state_seqs UNION ALL}
  UNION ALL
  SELECT max(seq) FROM message
  WHERE queue_id = wanted.queue_id AND position <> seq AND seq > :low AND seq < :high
) AS newest;

-- name: next_offset
-- index: history_place
SELECT max("offset")
FROM unnest(ids(:queues)) AS wanted (queue_id), unnest(ids(:outcomes)) AS ending (outcome),
  LATERAL (
  SELECT "offset" FROM history
  WHERE queue_id = wanted.queue_id AND outcome = ending.outcome
    AND "offset" > :low AND "offset" < :high
  ORDER BY "offset" DESC LIMIT 1
) AS newest;

-- name: few_traced
-- Live and settled messages whose traces begin with a text: at most :limit of each.
-- index: message_trace
-- index: history_trace
(
  SELECT seq FROM message
  WHERE trace_id >= :start AND trace_id < :end AND seq > :low AND seq < :high
  LIMIT :limit
)
UNION ALL
(
  SELECT seq FROM history
  WHERE trace_id >= :start AND trace_id < :end AND seq > :low AND seq < :high
  LIMIT :limit
);

-- name: queues
SELECT queue_id FROM queue
WHERE name LIKE ANY (ARRAY(
  SELECT like_pattern(glob) FROM jsonb_array_elements_text(:globs::jsonb) AS wanted (glob)
));
