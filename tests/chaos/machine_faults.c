/* Makes a machine misbehave for one process, as a test asks for at any time.
 *
 * Preload it (LD_PRELOAD) into a broker, before disk_log.c. MACHINE_FAULTS names a file with a
 * `struct faults`, which machine.py changes; DISK_LOG_FOLDER names the folder on the disk that is
 * full or slow.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct faults {
    int64_t clock_offset_seconds;
    int64_t is_disk_full;
    int64_t sync_milliseconds; /* that each sync takes longer */
};

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static volatile const struct faults *faults;
static const char *folder;

__attribute__((constructor)) static void start(void) {
    const char *name = getenv("MACHINE_FAULTS");
    folder = getenv("DISK_LOG_FOLDER");
    if (name == NULL || folder == NULL) return;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) abort();
    void *page = mmap(NULL, sizeof *faults, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) abort();
    faults = page;
    close(fd);
}

/* --- the clock ----------------------------------------------------------------------------- */

static int64_t offset(void) { return faults == NULL ? 0 : faults->clock_offset_seconds; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    int result = REAL(gettimeofday)(now, zone);
    if (result == 0) now->tv_sec += offset();
    return result;
}

time_t time(time_t *now) {
    time_t result = REAL(time)(NULL) + offset();
    if (now != NULL) *now = result;
    return result;
}

/* --- the disk ------------------------------------------------------------------------------ */

static int is_on_disk(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int is_full(int fd) {
    if (faults == NULL || !faults->is_disk_full || !is_on_disk(fd)) return 0;
    errno = ENOSPC;
    return 1;
}

ssize_t write(int fd, const void *data, size_t size) {
    return is_full(fd) ? -1 : REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return is_full(fd) ? -1 : REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return is_full(fd) ? -1 : REAL(pwrite64)(fd, data, size, at);
}

static void wait_for_disk(int fd) {
    if (faults != NULL && faults->sync_milliseconds && is_on_disk(fd))
        usleep((useconds_t)faults->sync_milliseconds * 1000);
}

int fsync(int fd) {
    wait_for_disk(fd);
    return REAL(fsync)(fd);
}

int fdatasync(int fd) {
    wait_for_disk(fd);
    return REAL(fdatasync)(fd);
}
