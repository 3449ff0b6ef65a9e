-- Rows are errors: the hours have as many messages as the archive, and the archive has no gap.
select counted.messages, archived.messages as archived, archived.range
from (select sum(messages) as messages from {{ ref('queue_hours') }}) as counted,
    (
        select count(*) as messages, max("offset") - min("offset") + 1 as range
        from {{ source('phpmq', 'history') }}
    ) as archived
where counted.messages <> archived.messages or archived.messages <> archived.range
