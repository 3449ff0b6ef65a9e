-- Envelopes.  Their settings of a queue (schema_mode, dead_letter_queue, empty_list_data) are
-- members of the JSON object in queue.settings, beside the other rare ones.

-- The record that a worker wrote about a message is looked for when that message dies.  Where the
-- broker writes the record itself the row costs one entry; all other messages cost nothing.
CREATE INDEX message_source ON message (source_seq) WHERE source_seq IS NOT NULL;
