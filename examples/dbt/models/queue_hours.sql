-- Messages by queue and hour of their settlement, with the waiting time in milliseconds.
select
    queue,
    date_trunc('hour', settled_at) as hour,
    count(*) as messages,
    count(*) filter (where outcome = 'dead') as dead,
    count(*) filter (where outcome = 'expired') as expired,
    sum(size) as bytes,
    quantile_cont(greatest(epoch_ms(first_dispatched_at) - epoch_ms(published_at), 0), 0.95)
        as wait_p95_ms
from {{ source('phpmq', 'history') }}
group by queue, hour
