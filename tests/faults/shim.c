/* A library to preload into a broker: it records, refuses and delays what happens to the files of
 * the data folder, records what the listeners' connections read and write, and turns the clock.
 *
 * What it does stands in a control file that both sides have mapped (``struct control``, written by
 * ``shim.py``), so that it can be changed while the broker runs.  Without one it does nothing.
 *
 * The order of the log is the order of what happened, as far as one follows from the other: a write
 * is logged before it is done, a sync before and after it, a reply together with it.  So whatever is
 * logged behind a reply had not been done when the reply left.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum op { OP_OPEN, OP_WRITE, OP_SYNC, OP_TRUNCATE, OP_RENAME, OP_UNLINK, OP_ALLOCATE, OPS };

struct control {                 /* offsets are also in shim.py */
    uint64_t log_serial;         /* 0: nothing is recorded; another number: begin the log anew */
    uint64_t is_read_only;
    int64_t delay_sync_ms;
    int64_t quota_bytes;         /* of all files of the folder; -1: no limit */
    int64_t clock_offset_ms;     /* of CLOCK_REALTIME */
    int64_t fail_op;             /* -1: none */
    int64_t fail_nth;            /* 1: the next one */
    int64_t fail_errno;
    int64_t fail_is_sticky;
    uint64_t fail_seen;          /* calls that the rule was about */
    uint64_t failed;             /* calls that failed for it */
    uint64_t counts[OPS];        /* of calls below the folder */
    char fail_name[64];          /* part of the file's name; empty: any */
    char folder[1024];           /* absolute */
    char log[1024];
    char failed_name[64];        /* of the file whose call failed first */
    uint64_t failed_pid;         /* of the process that made this call */
};

enum kind { NONE, PLAIN, INDEX, FOLDER, SOCKET };  /* INDEX: the -shm, which a start makes anew */

enum record {
    OPENED = 1, WRITTEN, TRUNCATED, SYNC_BEGUN, SYNC_ENDED, RENAMED, UNLINKED, MADE_FOLDER,
    ALLOCATED, ACCEPTED, SENT, RECEIVED, CLOSED, MARKED, SYNC_FAILED
};

struct header {
    uint64_t magic;              /* shows the reader where a record begins */
    uint32_t kind, pid, id, flags;
    uint64_t offset, length;     /* length: of what follows */
};

#define DESCRIPTORS 65536
#define MAGIC 0x8F1D63A9C2E7045BULL
static struct { uint8_t kind; uint32_t id; char *name; } slots[DESCRIPTORS];
static struct control *control;
static uint32_t last_id;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t open_serial;
static int log_fd = -1;

#define REAL(name) ((__typeof__(&name))real(#name, &real_##name))
#define KEEP(name) static void *real_##name
static void *real(const char *name, void **kept) {
    if (!*kept) *kept = dlsym(RTLD_NEXT, name);
    return *kept;
}

KEEP(open64); KEEP(openat64); KEEP(close); KEEP(write); KEEP(pwrite64); KEEP(writev);
KEEP(pwritev64); KEEP(fsync); KEEP(fdatasync); KEEP(ftruncate64); KEEP(renameat); KEEP(unlinkat);
KEEP(mkdir); KEEP(fallocate64); KEEP(posix_fallocate64); KEEP(sendfile); KEEP(statvfs64);
KEEP(fstatvfs64); KEEP(clock_gettime); KEEP(accept); KEEP(accept4); KEEP(send); KEEP(sendto);
KEEP(sendmsg); KEEP(read); KEEP(recv);
ssize_t sendfile(int, int, off_t *, size_t);

/* -- the control file, the log */

__attribute__((visibility("default"))) int shim_attach(const char *path) {
    int fd = REAL(open64)(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return -1;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REAL(close)(fd);
    if (mapped == MAP_FAILED) return -1;
    control = mapped;
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("PHPMQ_SHIM_CONTROL");
    if (path && shim_attach(path)) {
        fprintf(stderr, "shim: cannot map %s\n", path);
        _exit(99);
    }
}

static void append(enum record kind, uint32_t id, uint32_t flags, uint64_t offset,
                   const struct iovec *parts, int count, size_t length) {
    struct header header = {MAGIC, kind, (uint32_t)getpid(), id, flags, offset, length};
    struct iovec all[1025] = {{&header, sizeof header}};
    int used = 1;
    if (open_serial != control->log_serial) {
        if (log_fd >= 0) REAL(close)(log_fd);
        log_fd = REAL(open64)(control->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        open_serial = control->log_serial;
    }
    for (int i = 0; i < count && length && used < 1025; i++) {
        all[used] = parts[i];
        if (all[used].iov_len > length) all[used].iov_len = length;
        length -= all[used++].iov_len;
    }
    if (log_fd < 0 || REAL(writev)(log_fd, all, used) < 0) {
        fprintf(stderr, "shim: cannot write the log\n");
        _exit(99);
    }
}

static bool is_recording(void) { return control && control->log_serial; }

static void note(enum record kind, uint32_t id, uint32_t flags, uint64_t offset, const void *bytes,
                 size_t length) {
    struct iovec part = {(void *)bytes, length};
    if (!is_recording()) return;
    pthread_mutex_lock(&mutex);
    append(kind, id, flags, offset, &part, 1, length);
    pthread_mutex_unlock(&mutex);
}

__attribute__((visibility("default"))) void shim_mark(const char *text) {
    note(MARKED, 0, 0, 0, text, strlen(text));
}

/* -- which files */

/* Give what follows on the folder's name; NULL: it lies elsewhere. */
static const char *below(const char *path) {
    size_t length;
    if (!control || !path) return NULL;
    length = strlen(control->folder);
    if (!length || strncmp(path, control->folder, length)) return NULL;
    if (path[length] == '/') return path + length + 1;
    return path[length] ? NULL : path + length;
}

static const char *absolute(int folder, const char *path, char *room) {
    char link[64], base[PATH_MAX];
    if (!path || path[0] == '/') return path;
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return NULL;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, base, sizeof base - 1);
        if (length < 0) return NULL;
        base[length] = 0;
    }
    return snprintf(room, PATH_MAX, "%s/%s", base, path) < PATH_MAX ? room : NULL;
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && !strcmp(text + length - end_length, end);
}

static enum kind kind_of(int fd) {
    return control && fd >= 0 && fd < DESCRIPTORS ? slots[fd].kind : NONE;
}

static bool is_file(int fd) { return kind_of(fd) == PLAIN || kind_of(fd) == INDEX; }

static bool is_recorded(int fd) { return kind_of(fd) == PLAIN && is_recording(); }

/* -- what is refused */

static int refusal(enum op op, const char *name) {
    if (!control) return 0;
    __atomic_fetch_add(&control->counts[op], 1, __ATOMIC_SEQ_CST);
    if (control->fail_op == op && strstr(name, control->fail_name)) {
        int64_t seen = (int64_t)__atomic_add_fetch(&control->fail_seen, 1, __ATOMIC_SEQ_CST);
        if (seen == control->fail_nth || (control->fail_is_sticky && seen > control->fail_nth)) {
            if (!__atomic_fetch_add(&control->failed, 1, __ATOMIC_SEQ_CST)) {
                snprintf(control->failed_name, sizeof control->failed_name, "%.63s", name);
                control->failed_pid = (uint64_t)getpid();
            }
            if (control->fail_errno == EROFS && control->fail_is_sticky) control->is_read_only = 1;
            return (int)control->fail_errno;
        }
    }
    return control->is_read_only && op != OP_SYNC && op != OP_OPEN ? EROFS : 0;
}

#define REFUSE(op, name)                                    \
    do {                                                    \
        int refused = refusal(op, name);                    \
        if (refused) { errno = refused; return -1; }        \
    } while (0)

static __thread uint64_t used;

static int add_size(const char *path, const struct stat *status, int type, struct FTW *at) {
    (void)path; (void)at;
    if (type == FTW_F) used += ((uint64_t)status->st_size + 4095) / 4096 * 4096;
    return 0;
}

static uint64_t room_left(void) {
    used = 0;
    nftw(control->folder, add_size, 8, FTW_PHYS);
    uint64_t quota = (uint64_t)control->quota_bytes;
    return used < quota ? quota - used : 0;
}

/* Give how many bytes of a write fit; a file's last block is there already, whole. */
static size_t fitting(int fd, uint64_t offset, size_t length) {
    struct stat status;
    if (control->quota_bytes < 0 || fstat(fd, &status)) return length;
    uint64_t there = ((uint64_t)status.st_size + 4095) / 4096 * 4096;
    if (offset + length <= there) return length;
    uint64_t end = there + room_left() / 4096 * 4096;
    if (offset + length <= end) return length;
    return offset < end ? (size_t)(end - offset) : 0;
}

/* -- open, close */

static int opened(int fd, int flags, bool was_there) {
    char link[64], path[PATH_MAX];
    struct stat status;
    if (fd < 0 || fd >= DESCRIPTORS || !control) return fd;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return fd;
    path[length] = 0;
    const char *name = below(path);
    if (!name || fstat(fd, &status)) return fd;
    slots[fd].kind = S_ISDIR(status.st_mode) ? FOLDER : ends_with(name, "-shm") ? INDEX : PLAIN;
    slots[fd].id = __atomic_add_fetch(&last_id, 1, __ATOMIC_SEQ_CST);
    free(slots[fd].name);
    slots[fd].name = strdup(name);
    if (slots[fd].kind != INDEX)
        note(OPENED, slots[fd].id, (was_there ? 0 : 1) | (flags & O_TRUNC ? 2 : 0), 0, name,
             strlen(name));
    return fd;
}

static int open_file(int folder, const char *path, int flags, mode_t mode) {
    char room[PATH_MAX];
    const char *whole = control ? absolute(folder, path, room) : NULL;
    const char *name = below(whole);
    bool was_there = name && !access(whole, F_OK);
    if (name && !(flags & O_DIRECTORY)) {
        REFUSE(OP_OPEN, name);
        bool writes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
        if (control->is_read_only && writes) { errno = EROFS; return -1; }
        if (!was_there && flags & O_CREAT && control->quota_bytes >= 0 && room_left() < 4096) {
            errno = ENOSPC;
            return -1;
        }
    }
    return opened(REAL(openat64)(folder, path, flags, mode), flags, was_there);
}

#define MODE(flags)                                         \
    mode_t mode = 0;                                        \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                \
        va_list rest;                                       \
        va_start(rest, flags);                              \
        mode = (mode_t)va_arg(rest, int);                   \
        va_end(rest);                                       \
    }
int open(const char *path, int flags, ...) { MODE(flags) return open_file(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_file(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return open_file(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return open_file(at, path, flags, mode); }
int __open_2(const char *path, int flags) { return open_file(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_file(AT_FDCWD, path, flags, 0); }
int __openat_2(int at, const char *path, int flags) { return open_file(at, path, flags, 0); }
int __openat64_2(int at, const char *path, int flags) { return open_file(at, path, flags, 0); }

int close(int fd) {
    enum kind kind = kind_of(fd);
    if (kind) {
        slots[fd].kind = NONE;
        if (kind == SOCKET) note(CLOSED, slots[fd].id, 0, 0, NULL, 0);
    }
    return REAL(close)(fd);
}

/* -- connections */

static int accepted(int fd) {
    if (fd >= 0 && fd < DESCRIPTORS && control) {
        slots[fd].kind = SOCKET;
        slots[fd].id = __atomic_add_fetch(&last_id, 1, __ATOMIC_SEQ_CST);
        note(ACCEPTED, slots[fd].id, 0, 0, NULL, 0);
    }
    return fd;
}

int accept(int fd, struct sockaddr *address, socklen_t *length) {
    return accepted(REAL(accept)(fd, address, length));
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
    return accepted(REAL(accept4)(fd, address, length, flags));
}

/* Do what gives bytes to a connection, and log how many it took, in one. */
#define SEND(fd, parts, count, call)                                            \
    do {                                                                        \
        if (kind_of(fd) != SOCKET || !is_recording()) return call;              \
        pthread_mutex_lock(&mutex);                                             \
        ssize_t sent = call;                                                    \
        int error = errno;                                                      \
        if (sent > 0) append(SENT, slots[fd].id, 0, 0, parts, count, (size_t)sent); \
        pthread_mutex_unlock(&mutex);                                           \
        errno = error;                                                          \
        return sent;                                                            \
    } while (0)

ssize_t send(int fd, const void *bytes, size_t length, int flags) {
    struct iovec part = {(void *)bytes, length};
    SEND(fd, &part, 1, REAL(send)(fd, bytes, length, flags));
}

ssize_t sendto(int fd, const void *bytes, size_t length, int flags, const struct sockaddr *to,
               socklen_t to_length) {
    struct iovec part = {(void *)bytes, length};
    SEND(fd, &part, 1, REAL(sendto)(fd, bytes, length, flags, to, to_length));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    SEND(fd, message->msg_iov, (int)message->msg_iovlen, REAL(sendmsg)(fd, message, flags));
}

static ssize_t received(int fd, const void *bytes, ssize_t length) {
    if (length > 0 && kind_of(fd) == SOCKET) {
        int error = errno;
        note(RECEIVED, slots[fd].id, 0, 0, bytes, (size_t)length);
        errno = error;
    }
    return length;
}

ssize_t read(int fd, void *room, size_t length) {
    return received(fd, room, REAL(read)(fd, room, length));
}

ssize_t recv(int fd, void *room, size_t length, int flags) {
    return received(fd, room, REAL(recv)(fd, room, length, flags));
}

/* -- writes */

#define WRITE(fd, at, parts, count, length, whole, part)                        \
    do {                                                                        \
        REFUSE(OP_WRITE, slots[fd].name);                                       \
        uint64_t offset = (uint64_t)(at);                                       \
        size_t asked = length, fits = fitting(fd, offset, asked);               \
        if (asked && !fits) { errno = ENOSPC; return -1; }                      \
        if (is_recorded(fd)) {                                                  \
            pthread_mutex_lock(&mutex);                                         \
            append(WRITTEN, slots[fd].id, 0, offset, parts, count, fits);       \
            pthread_mutex_unlock(&mutex);                                       \
        }                                                                       \
        return fits < asked ? part : whole;                                     \
    } while (0)

/* Where the next write of a descriptor goes to. */
static off64_t place(int fd) {
    if (fcntl(fd, F_GETFL) & O_APPEND) {
        struct stat status;
        return fstat(fd, &status) ? 0 : status.st_size;
    }
    return lseek64(fd, 0, SEEK_CUR);
}

static size_t sum(const struct iovec *parts, int count) {
    size_t length = 0;
    for (int i = 0; i < count; i++) length += parts[i].iov_len;
    return length;
}

ssize_t write(int fd, const void *bytes, size_t length) {
    struct iovec part = {(void *)bytes, length};
    if (is_file(fd))
        WRITE(fd, place(fd), &part, 1, length, REAL(write)(fd, bytes, length),
              REAL(write)(fd, bytes, fits));
    SEND(fd, &part, 1, REAL(write)(fd, bytes, length));
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
    struct iovec one = {(void *)bytes, length};
    if (!is_file(fd)) return REAL(pwrite64)(fd, bytes, length, at);
    WRITE(fd, at, &one, 1, length, REAL(pwrite64)(fd, bytes, length, at),
          REAL(pwrite64)(fd, bytes, fits, at));
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) {
    return pwrite64(fd, bytes, length, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (is_file(fd))
        WRITE(fd, place(fd), parts, count, sum(parts, count), REAL(writev)(fd, parts, count),
              REAL(write)(fd, parts[0].iov_base, parts[0].iov_len < fits ? parts[0].iov_len : fits));
    SEND(fd, parts, count, REAL(writev)(fd, parts, count));
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    if (!is_file(fd)) return REAL(pwritev64)(fd, parts, count, at);
    WRITE(fd, at, parts, count, sum(parts, count), REAL(pwritev64)(fd, parts, count, at),
          REAL(pwrite64)(fd, parts[0].iov_base, parts[0].iov_len < fits ? parts[0].iov_len : fits, at));
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    return pwritev64(fd, parts, count, at);
}

ssize_t sendfile(int to, int from, off_t *at, size_t length) {
    if (is_file(to)) { errno = EINVAL; return -1; }  /* who asks writes it then */
    return REAL(sendfile)(to, from, at, length);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t length) {
    return sendfile(to, from, at, length);
}

/* -- syncs */

static int sync_file(int fd, int (*call)(int)) {
    if (!is_file(fd) && kind_of(fd) != FOLDER) return call(fd);
    if (control->delay_sync_ms > 0) {
        struct timespec delay = {control->delay_sync_ms / 1000, control->delay_sync_ms % 1000 * 1000000};
        while (nanosleep(&delay, &delay) && errno == EINTR) continue;
    }
    uint32_t id = slots[fd].id;
    bool is_logged = kind_of(fd) != INDEX;
    if (is_logged) note(SYNC_BEGUN, id, 0, 0, NULL, 0);
    int error = refusal(OP_SYNC, slots[fd].name);
    if (!error && call(fd)) error = errno;
    if (is_logged) note(error ? SYNC_FAILED : SYNC_ENDED, id, 0, 0, NULL, 0);
    errno = error;
    return error ? -1 : 0;
}

int fsync(int fd) { return sync_file(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_file(fd, REAL(fdatasync)); }

/* -- sizes */

int ftruncate64(int fd, off64_t length) {
    if (is_file(fd)) {
        REFUSE(OP_TRUNCATE, slots[fd].name);
        if (is_recorded(fd)) note(TRUNCATED, slots[fd].id, 0, (uint64_t)length, NULL, 0);
    }
    return REAL(ftruncate64)(fd, length);
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

static int allocation_refused(int fd, uint64_t end) {
    int refused = refusal(OP_ALLOCATE, slots[fd].name);
    if (!refused && fitting(fd, 0, end) < end) refused = ENOSPC;
    if (!refused && is_recorded(fd)) note(ALLOCATED, slots[fd].id, 0, end, NULL, 0);
    return refused;
}

int posix_fallocate64(int fd, off64_t at, off64_t length) {
    int refused = is_file(fd) ? allocation_refused(fd, (uint64_t)(at + length)) : 0;
    return refused ? refused : REAL(posix_fallocate64)(fd, at, length);
}

int posix_fallocate(int fd, off_t at, off_t length) { return posix_fallocate64(fd, at, length); }

int fallocate64(int fd, int mode, off64_t at, off64_t length) {
    int refused = is_file(fd) ? allocation_refused(fd, (uint64_t)(at + length)) : 0;
    if (refused) { errno = refused; return -1; }
    return REAL(fallocate64)(fd, mode, at, length);
}

int fallocate(int fd, int mode, off_t at, off_t length) { return fallocate64(fd, mode, at, length); }

/* -- names */

static int rename_file(int from_at, const char *from, int to_at, const char *to) {
    char from_room[PATH_MAX], to_room[PATH_MAX], both[2 * PATH_MAX];
    const char *old = control ? below(absolute(from_at, from, from_room)) : NULL;
    const char *new = control ? below(absolute(to_at, to, to_room)) : NULL;
    if (old && new) {
        REFUSE(OP_RENAME, new);
        int length = snprintf(both, sizeof both, "%s%c%s", old, 0, new);
        note(RENAMED, 0, 0, 0, both, (size_t)length);
    }
    return REAL(renameat)(from_at, from, to_at, to);
}

int rename(const char *from, const char *to) { return rename_file(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int from_at, const char *from, int to_at, const char *to) {
    return rename_file(from_at, from, to_at, to);
}

static int unlink_file(int at, const char *path, int flags) {
    char room[PATH_MAX];
    const char *whole = control ? absolute(at, path, room) : NULL;
    const char *name = below(whole);
    if (name && !access(whole, F_OK)) {
        REFUSE(OP_UNLINK, name);
        if (!ends_with(name, "-shm")) note(UNLINKED, 0, 0, 0, name, strlen(name));
    }
    return REAL(unlinkat)(at, path, flags);
}

int unlink(const char *path) { return unlink_file(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return unlink_file(at, path, flags); }

int mkdir(const char *path, mode_t mode) {
    char room[PATH_MAX];
    const char *name = control ? below(absolute(AT_FDCWD, path, room)) : NULL;
    if (name && control->is_read_only) { errno = EROFS; return -1; }
    int result = REAL(mkdir)(path, mode);
    if (name && !result) note(MADE_FOLDER, 0, 0, 0, name, strlen(name));
    return result;
}

/* -- space */

static void tell_room(struct statvfs64 *status) {
    status->f_bsize = status->f_frsize = 4096;
    status->f_blocks = (uint64_t)control->quota_bytes / 4096;
    status->f_bfree = status->f_bavail = room_left() / 4096;
}

int statvfs64(const char *path, struct statvfs64 *status) {
    char room[PATH_MAX];
    int result = REAL(statvfs64)(path, status);
    if (!result && control && control->quota_bytes >= 0 && below(absolute(AT_FDCWD, path, room)))
        tell_room(status);
    return result;
}

int fstatvfs64(int fd, struct statvfs64 *status) {
    int result = REAL(fstatvfs64)(fd, status);
    if (!result && kind_of(fd) && kind_of(fd) != SOCKET && control->quota_bytes >= 0)
        tell_room(status);
    return result;
}

_Static_assert(sizeof(struct statvfs) == sizeof(struct statvfs64), "for 64-bit systems");
int statvfs(const char *path, struct statvfs *status) {
    return statvfs64(path, (struct statvfs64 *)status);
}
int fstatvfs(int fd, struct statvfs *status) { return fstatvfs64(fd, (struct statvfs64 *)status); }

/* -- the clock */

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (!result && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t offset_ms = control->clock_offset_ms;
        int64_t ns = now->tv_nsec + offset_ms % 1000 * 1000000;
        now->tv_sec += offset_ms / 1000 + (ns < 0 ? -1 : ns / 1000000000);
        now->tv_nsec = (ns + 1000000000) % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return result;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}
