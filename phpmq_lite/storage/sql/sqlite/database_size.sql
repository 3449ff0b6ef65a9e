-- name: pages
-- Pages of the database file, not including the write-ahead log.
-- columns: pages, free pages, page size in bytes
SELECT (SELECT page_count FROM pragma_page_count()),
  (SELECT freelist_count FROM pragma_freelist_count()), (SELECT page_size FROM pragma_page_size());
