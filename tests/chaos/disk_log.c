/* Records what a process does to the files below a folder, in the order in which it does it.
 *
 * Preload it (LD_PRELOAD) into a broker. DISK_LOG_FOLDER names the folder, DISK_LOG the log, to which
 * several processes may append, one after the other. disk.py reads the log, and rebuilds the folder
 * as a disk could hold it after a power cut.
 *
 * It covers the calls that Python and SQLite make. A test compares the rebuilt folder with the real
 * one, and so notices a call that is not covered.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum operation { START, CREATE, WRITE, TRUNCATE, SYNC, SYNCED, UNLINK, RENAME, MKDIR };

struct record {
    uint32_t operation, path_size, data_size, zero;
    int64_t offset; /* of WRITE; the size of TRUNCATE; of SYNCED: the number of its SYNC */
};

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const char *folder;
static int log_fd = -1;
static int64_t count; /* of records */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* The caller holds the mutex. Returns the number of the record. */
static int64_t add(enum operation operation, const char *path, int64_t offset, const void *data,
                   size_t size) {
    struct record head = {operation, (uint32_t)strlen(path), (uint32_t)size, 0, offset};
    struct iovec parts[] = {
        {&head, sizeof head}, {(void *)path, head.path_size}, {(void *)data, size}};
    if (writev(log_fd, parts, 3) != (ssize_t)(sizeof head + head.path_size + size)) abort();
    return count++;
}

__attribute__((constructor)) static void start(void) {
    const char *name = getenv("DISK_LOG");
    folder = getenv("DISK_LOG_FOLDER");
    if (name == NULL || folder == NULL) return;
    log_fd = REAL(open)(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0) abort();
    add(START, folder, 0, NULL, 0);
}

static int is_logged(const char *path) {
    size_t size = log_fd < 0 ? 0 : strlen(folder);
    return size > 0 && strncmp(path, folder, size) == 0 && (path[size] == '/' || path[size] == 0);
}

/* Whether an open file is below the folder; then `path` is its path. One that was deleted is not,
 * and SQLite's -shm file is shared memory, not data. */
static int find(int fd, char path[4096]) {
    char link[64];
    if (log_fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, 4095);
    if (size < 0) return 0;
    path[size] = 0;
    return is_logged(path) && strstr(path, " (deleted)") == NULL && strstr(path, "-shm") == NULL;
}

/* --- files --------------------------------------------------------------------------------- */

static void opened(const char *path, int flags) {
    if (!is_logged(path) || strstr(path, "-shm") != NULL) return;
    pthread_mutex_lock(&mutex);
    if (flags & O_CREAT) add(CREATE, path, 0, NULL, 0);
    if (flags & O_TRUNC) add(TRUNCATE, path, 0, NULL, 0);
    pthread_mutex_unlock(&mutex);
}

#define OPEN(name)                                       \
    int name(const char *path, int flags, ...) {         \
        va_list more;                                    \
        va_start(more, flags);                           \
        mode_t mode = va_arg(more, mode_t);              \
        va_end(more);                                    \
        int fd = REAL(name)(path, flags, mode);          \
        if (fd >= 0) opened(path, flags);                \
        return fd;                                       \
    }
OPEN(open)
OPEN(open64)

#define PWRITE(name, offset_t)                                                \
    ssize_t name(int fd, const void *data, size_t size, offset_t offset) {    \
        char path[4096];                                                      \
        if (!find(fd, path)) return REAL(name)(fd, data, size, offset);       \
        pthread_mutex_lock(&mutex);                                           \
        add(WRITE, path, offset, data, size);                                 \
        ssize_t written = REAL(name)(fd, data, size, offset);                 \
        pthread_mutex_unlock(&mutex);                                         \
        return written;                                                       \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int fd, const void *data, size_t size) {
    char path[4096];
    if (fd == log_fd || !find(fd, path)) return REAL(write)(fd, data, size);
    int is_append = fcntl(fd, F_GETFL) & O_APPEND;
    pthread_mutex_lock(&mutex);
    add(WRITE, path, lseek64(fd, 0, is_append ? SEEK_END : SEEK_CUR), data, size);
    ssize_t written = REAL(write)(fd, data, size);
    pthread_mutex_unlock(&mutex);
    return written;
}

#define FTRUNCATE(name, offset_t)                                \
    int name(int fd, offset_t size) {                            \
        char path[4096];                                         \
        if (!find(fd, path)) return REAL(name)(fd, size);        \
        pthread_mutex_lock(&mutex);                              \
        add(TRUNCATE, path, size, NULL, 0);                      \
        int result = REAL(name)(fd, size);                       \
        pthread_mutex_unlock(&mutex);                            \
        return result;                                           \
    }
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

/* Safe is what was written before the call, when it has returned. */
#define SYNC_CALL(name)                                    \
    int name(int fd) {                                     \
        char path[4096];                                   \
        if (!find(fd, path)) return REAL(name)(fd);        \
        pthread_mutex_lock(&mutex);                        \
        int64_t number = add(SYNC, path, 0, NULL, 0);      \
        pthread_mutex_unlock(&mutex);                      \
        int result = REAL(name)(fd);                       \
        if (result != 0) return result;                    \
        pthread_mutex_lock(&mutex);                        \
        add(SYNCED, path, number, NULL, 0);                \
        pthread_mutex_unlock(&mutex);                      \
        return result;                                     \
    }
SYNC_CALL(fsync)
SYNC_CALL(fdatasync)

/* --- names --------------------------------------------------------------------------------- */

#define NAME_CALL(condition, operation, path, other, call)                        \
    if (!(condition)) return call;                                                \
    pthread_mutex_lock(&mutex);                                                   \
    int result = call;                                                            \
    if (result == 0) add(operation, path, 0, other, strlen(other));               \
    pthread_mutex_unlock(&mutex);                                                 \
    return result;

int unlink(const char *path) {
    NAME_CALL(is_logged(path) && strstr(path, "-shm") == NULL, UNLINK, path, "", REAL(unlink)(path))
}

int rename(const char *from, const char *to) {
    NAME_CALL(is_logged(to), RENAME, from, to, REAL(rename)(from, to))
}

int mkdir(const char *path, mode_t mode) {
    NAME_CALL(is_logged(path), MKDIR, path, "", REAL(mkdir)(path, mode))
}
