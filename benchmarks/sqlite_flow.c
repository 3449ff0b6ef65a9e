/* SQLite alone with the rows of the flow: what a broker on this schema could reach at most.
 *
 * Each message is inserted with its body and its receipt; the messages of the previous batch are
 * copied to the history and deleted.  Every 10,000 history rows are indexed in a transaction of
 * their own, receipts beyond 100,000 are removed, and the WAL is checkpointed at 8 MiB.  Schema,
 * pragmas and statements are those of schema version 7 and stay so, to compare later versions.
 *
 * Usage: sqlite_flow FILE BATCH BODY_BYTES SECONDS; prints the number of messages per second. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INDEXED = 10000, RECEIPTS = 100000, LOG_BYTES = 8 << 20 };

static const char *const SCHEMA =
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0;"
    "PRAGMA cache_size=-8192; PRAGMA foreign_keys=1; PRAGMA cell_size_check=1;"
    "PRAGMA temp_store=2;"
    "CREATE TABLE queue (queue_id INTEGER PRIMARY KEY, live_count INTEGER, live_bytes INTEGER);"
    "INSERT INTO queue VALUES (1, 0, 0);"
    "CREATE TABLE message (seq INTEGER PRIMARY KEY, token INTEGER NOT NULL,"
    " queue_id INTEGER NOT NULL, position INTEGER NOT NULL,"
    " state INTEGER NOT NULL CHECK (state IN (0, 1)), ttl_s INTEGER, deadline_ms INTEGER,"
    " published_at INTEGER NOT NULL, first_dispatched_at INTEGER, last_dispatched_at INTEGER,"
    " deliveries INTEGER NOT NULL DEFAULT 0, charged INTEGER NOT NULL DEFAULT 0,"
    " size INTEGER NOT NULL, crc INTEGER NOT NULL, publisher INTEGER, consumer INTEGER,"
    " urn TEXT, trace_id TEXT, meta_id TEXT, attempts INTEGER, source_seq INTEGER,"
    " source_queue_id INTEGER, source_reason TEXT);"
    "CREATE INDEX message_deadline ON message (deadline_ms)"
    " WHERE state = 0 AND deadline_ms IS NOT NULL;"
    "CREATE INDEX message_place ON message (queue_id, position) WHERE state = 0;"
    "CREATE INDEX message_held ON message (queue_id, position) WHERE state = 1;"
    "CREATE INDEX message_moved ON message (queue_id) WHERE position <> seq;"
    "CREATE INDEX message_source ON message (source_seq) WHERE source_seq IS NOT NULL;"
    "CREATE TABLE body (seq INTEGER PRIMARY KEY, content BLOB NOT NULL);"
    "CREATE TABLE history (\"offset\" INTEGER PRIMARY KEY, seq INTEGER NOT NULL,"
    " token INTEGER NOT NULL, queue_id INTEGER NOT NULL, position INTEGER NOT NULL,"
    " outcome INTEGER NOT NULL CHECK (outcome BETWEEN 2 AND 5), reason TEXT,"
    " settled_at INTEGER NOT NULL, ttl_s INTEGER, deadline_ms INTEGER,"
    " published_at INTEGER NOT NULL, first_dispatched_at INTEGER, last_dispatched_at INTEGER,"
    " deliveries INTEGER NOT NULL, charged INTEGER NOT NULL, size INTEGER NOT NULL,"
    " crc INTEGER NOT NULL, publisher INTEGER, consumer INTEGER, urn TEXT, trace_id TEXT,"
    " meta_id TEXT, attempts INTEGER, source_seq INTEGER, source_queue_id INTEGER,"
    " source_reason TEXT);"
    "CREATE INDEX history_seq ON history (seq);"
    "CREATE INDEX history_unusual ON history (outcome, \"offset\") WHERE outcome <> 2;"
    "CREATE TABLE receipt (n INTEGER PRIMARY KEY, queue_id INTEGER NOT NULL, key BLOB NOT NULL,"
    " seq INTEGER NOT NULL, at_ms INTEGER NOT NULL);"
    "CREATE TABLE history_place (block INTEGER NOT NULL, queue_id INTEGER NOT NULL,"
    " outcome INTEGER NOT NULL, \"offset\" INTEGER NOT NULL,"
    " PRIMARY KEY (block, queue_id, outcome, \"offset\")) WITHOUT ROWID;"
    "CREATE TABLE history_number (block INTEGER NOT NULL, queue_id INTEGER NOT NULL,"
    " seq INTEGER NOT NULL, \"offset\" INTEGER NOT NULL, outcome INTEGER NOT NULL,"
    " PRIMARY KEY (block, queue_id, seq, \"offset\")) WITHOUT ROWID;";

#define COPIED                                                                                    \
    "seq, token, queue_id, position, ttl_s, deadline_ms, published_at, first_dispatched_at,"       \
    " last_dispatched_at, deliveries, charged, size, crc, publisher, consumer, urn, trace_id,"     \
    " meta_id, attempts, source_seq, source_queue_id, source_reason"

static sqlite3 *db;
static long settled, indexed, trimmed;

static void check(int code) {
    if (code != SQLITE_OK && code != SQLITE_DONE && code != SQLITE_ROW) {
        fprintf(stderr, "sqlite_flow: %s\n", sqlite3_errmsg(db));
        exit(1);
    }
}

static void run(const char *sql) { check(sqlite3_exec(db, sql, NULL, NULL, NULL)); }

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Prepare HEAD, then ROW once for each of `rows` rows, then TAIL. */
static sqlite3_stmt *prepare(const char *head, const char *row, int rows, const char *tail) {
    sqlite3_stmt *statement;
    char *sql = malloc(strlen(head) + (strlen(row) + 1) * (size_t)rows + strlen(tail) + 1);
    strcpy(sql, head);
    char *end = sql + strlen(sql);
    for (int i = 0; i < rows; i++) end += sprintf(end, "%s%s", i ? "," : "", row);
    strcpy(end, tail);
    check(sqlite3_prepare_v3(db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL));
    free(sql);
    return statement;
}

static void finish(sqlite3_stmt *statement) {
    check(sqlite3_step(statement));
    check(sqlite3_reset(statement));
}

static sqlite3_stmt *prepared(sqlite3_stmt **kept, int rows, const char *head, const char *row,
                              const char *tail) {
    sqlite3_stmt **place = &kept[rows == 1 ? 0 : rows == 10 ? 1 : 2];
    if (!*place) *place = prepare(head, row, rows, tail);
    return *place;
}

static void insert(long first, int rows, const void *body, int size) {
    static sqlite3_stmt *messages[3], *bodies[3], *receipts[3];
    sqlite3_stmt *m = prepared(messages, rows,
        "INSERT INTO message (seq, token, queue_id, position, state, ttl_s, deadline_ms,"
        " published_at, first_dispatched_at, last_dispatched_at, deliveries, charged, size, crc,"
        " publisher, consumer) VALUES ", "(?,?,1,?,1,NULL,NULL,?,?,?,1,0,?,?,1,2)", "");
    sqlite3_stmt *b = prepared(bodies, rows, "INSERT INTO body (seq, content) VALUES ", "(?,?)", "");
    sqlite3_stmt *r = prepared(receipts, rows,
        "INSERT INTO receipt (queue_id, key, seq, at_ms) VALUES ", "(1,?,?,?)", "");
    for (int i = 0; i < rows; i++) {
        long seq = first + i, at = 1790000000000 + seq / 100;
        char key[17];
        snprintf(key, sizeof key, "%016lx", (unsigned long)seq);
        sqlite3_bind_int64(m, i * 8 + 1, seq);
        sqlite3_bind_int64(m, i * 8 + 2, (seq * 6364136223846793005L + 1) & 0x7fffffffffffffffL);
        sqlite3_bind_int64(m, i * 8 + 3, seq);
        for (int column = 4; column <= 6; column++) sqlite3_bind_int64(m, i * 8 + column, at);
        sqlite3_bind_int64(m, i * 8 + 7, size);
        sqlite3_bind_int64(m, i * 8 + 8, (seq * 2654435761L) & 0xffffffffL);
        sqlite3_bind_int64(b, i * 2 + 1, seq);
        sqlite3_bind_blob(b, i * 2 + 2, body, size, SQLITE_STATIC);
        sqlite3_bind_blob(r, i * 3 + 1, key, 16, SQLITE_TRANSIENT);
        sqlite3_bind_int64(r, i * 3 + 2, seq);
        sqlite3_bind_int64(r, i * 3 + 3, at);
    }
    finish(m);
    finish(b);
    finish(r);
}

static void settle(long first, int rows) {
    static sqlite3_stmt *copies[3], *deletions[3];
    sqlite3_stmt *c = prepared(copies, rows,
        "INSERT INTO history (outcome, reason, settled_at, " COPIED ") SELECT 2, NULL,"
        " 1790000000000, " COPIED " FROM message WHERE seq IN (", "?", ") ORDER BY seq");
    sqlite3_stmt *d = prepared(deletions, rows, "DELETE FROM message WHERE seq IN (", "?", ")");
    for (int i = 0; i < rows; i++) {
        sqlite3_bind_int64(c, i + 1, first + i);
        sqlite3_bind_int64(d, i + 1, first + i);
    }
    finish(c);
    finish(d);
    settled += rows;
}

static void each(long first, int count, const void *body, int size) {
    for (int at = 0; at < count;) {
        int left = count - at, rows = left >= 100 ? 100 : left >= 10 ? 10 : 1;
        if (body) insert(first + at, rows, body, size);
        else settle(first + at, rows);
        at += rows;
    }
}

static void index_history(void) {
    char sql[1024];
    snprintf(sql, sizeof sql,
        "BEGIN IMMEDIATE;"
        "INSERT INTO history_place (block, queue_id, outcome, \"offset\")"
        " SELECT \"offset\" >> 16, queue_id, outcome, \"offset\" FROM history NOT INDEXED"
        " WHERE \"offset\" > %ld AND \"offset\" <= %ld ORDER BY 1, 2, 3, 4;"
        "INSERT INTO history_number (block, queue_id, seq, \"offset\", outcome)"
        " SELECT seq >> 16, queue_id, seq, \"offset\", outcome FROM history NOT INDEXED"
        " WHERE \"offset\" > %ld AND \"offset\" <= %ld ORDER BY 1, 2, 3, 4;"
        "COMMIT", indexed, indexed + INDEXED, indexed, indexed + INDEXED);
    run(sql);
    indexed += INDEXED;
}

static void trim_receipts(long last) {
    char sql[64];
    trimmed = last - RECEIPTS;
    snprintf(sql, sizeof sql, "DELETE FROM receipt WHERE n <= %ld", trimmed);
    run(sql);
}

int main(int argc, char **argv) {
    if (argc != 5 || sqlite3_open(argv[1], &db) != SQLITE_OK) {
        fprintf(stderr, "usage: sqlite_flow FILE BATCH BODY_BYTES SECONDS\n");
        return 2;
    }
    int batch = atoi(argv[2]), size = atoi(argv[3]);
    double seconds = atof(argv[4]);
    char *body = malloc((size_t)size);
    memset(body, 'x', (size_t)size);
    run(SCHEMA);

    double began = now();
    long log_bytes = 0, messages = 0;
    for (long seq = 1; now() - began < seconds; seq += batch) {
        char count[96];
        run("BEGIN IMMEDIATE");
        each(seq, batch, body, size);
        if (seq > 1) each(seq - batch, batch, NULL, 0);
        snprintf(count, sizeof count, "UPDATE queue SET live_count = %d, live_bytes = %ld", batch,
                 (long)batch * size + seq % 2);
        run(count);
        run("COMMIT");
        messages = settled;
        log_bytes += (16 << 10) + (long)batch * (size + 500);
        if (settled - indexed >= INDEXED) index_history(), log_bytes += INDEXED * 400;
        if (seq - trimmed > RECEIPTS + INDEXED) trim_receipts(seq);
        if (log_bytes >= LOG_BYTES) run("PRAGMA wal_checkpoint(RESTART)"), log_bytes = 0;
    }
    printf("%.0f\n", (double)messages / (now() - began));
    return 0;
}
