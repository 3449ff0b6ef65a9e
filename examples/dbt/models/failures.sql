-- What failed, by day: dead letters by reason, and messages that expired.
select
    cast(settled_at as date) as day,
    queue,
    urn,
    coalesce(reason, outcome) as reason,
    count(*) as messages,
    arg_max(message_id, "offset") as newest_message_id
from {{ source('phpmq', 'history') }}
where outcome in ('dead', 'expired')
group by all
