-- The state of the server that accepts writes, for pages and metrics.

-- name: status
-- The folder is NULL if the server is on another machine, or if the role may not see it.
-- columns: version, size of the database, schema, has_checksums, connections, limit of connections,
-- folder
SELECT split_part(current_setting('server_version'), ' ', 1), pg_database_size(current_database()),
  (SELECT coalesce(max(number), 0) FROM migration), current_setting('data_checksums')::boolean,
  (SELECT sum(numbackends)::bigint FROM pg_stat_database),
  current_setting('max_connections')::bigint,
  CASE WHEN pg_has_role('pg_read_all_settings', 'USAGE')
      AND (inet_server_addr() IS NULL OR inet_server_addr() <<= '127.0.0.0/8'
        OR inet_server_addr() = '::1')
    THEN current_setting('data_directory') END;

-- name: replicas
-- If the role may not monitor, all columns but the name are NULL.  A replica that lags and does not
-- answer lags at least as long as it has been silent.
-- columns: name, address, state, is_counted, bytes behind, seconds behind
SELECT application_name, coalesce(host(client_addr), CASE WHEN state IS NOT NULL THEN '' END), state,
  sync_state IN ('sync', 'quorum'),
  greatest(0, pg_current_wal_lsn() - flush_lsn)::bigint,
  CASE WHEN pg_current_wal_lsn() <= flush_lsn THEN 0
    ELSE extract(epoch FROM greatest(flush_lag, clock_timestamp() - reply_time, '0'))
  END::double precision
FROM pg_stat_replication
WHERE application_name NOT IN ('pg_basebackup', 'pg_receivewal') AND state IS DISTINCT FROM 'backup'
ORDER BY application_name, pid;

-- name: oldest_transaction
-- The oldest transaction that keeps VACUUM from removing rows of this database, if any.
-- columns: description, seconds
SELECT * FROM (
  SELECT coalesce(nullif(application_name, ''), usename) || ', pid ' || pid,
    extract(epoch FROM clock_timestamp() - xact_start)::double precision AS age_s
  FROM pg_stat_activity
  WHERE datname = current_database() AND backend_type = 'client backend'
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND xact_start IS NOT NULL
    AND pid <> pg_backend_pid()
  UNION ALL
  SELECT 'prepared transaction ' || gid,
    extract(epoch FROM clock_timestamp() - prepared)::double precision
  FROM pg_prepared_xacts WHERE database = current_database()
) AS held (held_by, age_s) ORDER BY age_s DESC LIMIT 1;

-- name: waits
-- columns: what a server process waits for
SELECT wait_event FROM pg_stat_activity WHERE pid = :pid;

-- name: probe
-- columns: number of the version, may create tables, may write the tables (NULL: there are none),
-- time in Unix ms, number of this server process, synchronous_standby_names, fsync,
-- full_page_writes, synchronous_commit of this session, connections, limit of connections
SELECT current_setting('server_version_num')::integer,
  coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
  has_table_privilege(to_regclass('message'), 'INSERT, UPDATE, DELETE')
    AND has_table_privilege(to_regclass('epoch'), 'UPDATE'),
  (extract(epoch FROM clock_timestamp()) * 1000)::bigint, pg_backend_pid(),
  current_setting('synchronous_standby_names'), current_setting('fsync'),
  current_setting('full_page_writes'), current_setting('synchronous_commit'),
  (SELECT sum(numbackends)::bigint FROM pg_stat_database),
  current_setting('max_connections')::bigint;
