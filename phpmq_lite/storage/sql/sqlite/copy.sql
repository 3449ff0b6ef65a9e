-- name: tables
-- All tables with their columns, those of the primary key first.
-- columns: table, column, type, place in the primary key, or NULL
SELECT t.name, c.name, c.type, nullif(c.pk, 0) AS place
FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c
WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite\_%' ESCAPE '\'
ORDER BY t.name, place NULLS LAST, c.name;

-- name: forget_index
-- What the index of the history has counted, and how far it goes.
DELETE FROM counter WHERE name IN (
  'placed_upto', 'traced_upto', 'history_rows', 'history_bytes', 'deleted_rows', 'deleted_bytes');
