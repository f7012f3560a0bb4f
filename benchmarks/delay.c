/* A TCP proxy that passes every byte on after half a round trip, in both directions.

       delay PORT ROUND_TRIP_US      prints the port that it listens on, and runs until it is killed

   It is in C because it runs beside what is measured, on the same cores. netem would be the usual
   way, but many kernels do not have it. Each read becomes a piece in a queue, with the time at
   which it is due at the other end. A timer waits for the piece that is due first.
*/
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
/* More than a line of 300 ms holds at the rates measured here. */
#define IN_FLIGHT_MAX (64 << 20)
#define READ_MAX (256 << 10)
#define EVENTS_MAX 64

struct piece {
    struct piece *next;
    long long due;
    size_t size, written; /* size 0: the end of the stream */
    char data[];
};

/* One end of a connection, with what was read there and is on its way to the other end. */
struct half {
    int fd;
    struct half *other, *next;
    struct piece *first, *last;
    size_t in_flight;
    long long opened_at; /* nothing leaves before the connection would be open */
    bool has_ended, has_passed_all, is_blocked;
    unsigned watched;
};

static struct half *halves;
static int poller;
static long long half_trip;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

static int checked(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

/* An end that is not watched for anything is removed, because a hangup is always reported. */
static void watch(struct half *half, unsigned events) {
    struct epoll_event event = {.events = events, .data.ptr = half};
    int operation = !events ? EPOLL_CTL_DEL : half->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (half->watched != events)
        checked(epoll_ctl(poller, operation, half->fd, &event), "epoll_ctl");
    half->watched = events;
}

static struct half *new_half(int fd, long long opened_at) {
    int on = 1;
    struct half *half = calloc(1, sizeof *half);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    half->fd = fd;
    half->opened_at = opened_at;
    half->next = halves;
    halves = half;
    watch(half, EPOLLIN);
    return half;
}

/* Connecting to the proxy takes no time. Over a real distance it takes a round trip, so the first
   bytes wait for that long. */
static void accept_one(int listener, const struct sockaddr_in *server) {
    int near = accept(listener, NULL, NULL);
    int far = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
    if (near < 0 || connect(far, (const struct sockaddr *)server, sizeof *server) < 0) {
        close(near);
        close(far);
        return;
    }
    struct half *one = new_half(near, now() + 2 * half_trip), *two = new_half(far, 0);
    one->other = two;
    two->other = one;
}

static void queue(struct half *half, const char *data, size_t size) {
    struct piece *piece = malloc(sizeof *piece + size);
    long long at = now();
    piece->next = NULL;
    piece->due = (at > half->opened_at ? at : half->opened_at) + half_trip;
    piece->size = size;
    piece->written = 0;
    memcpy(piece->data, data, size);
    if (half->first == NULL)
        half->first = piece;
    else
        half->last->next = piece;
    half->last = piece;
    half->in_flight += size;
}

static void read_some(struct half *half) {
    static char data[READ_MAX];
    ssize_t size = recv(half->fd, data, sizeof data, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    half->has_ended = size <= 0;
    queue(half, data, size < 0 ? 0 : size);
}

/* Writes what is due to the other end. */
static void pass_on(struct half *half, long long at) {
    struct piece *piece;
    while ((piece = half->first) != NULL && piece->due <= at && !half->is_blocked) {
        ssize_t size = 0;
        if (piece->size == 0) {
            shutdown(half->other->fd, SHUT_WR);
            half->has_passed_all = true;
        } else {
            size = send(half->other->fd, piece->data + piece->written,
                        piece->size - piece->written, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (size < 0 && errno == EAGAIN) {
                half->is_blocked = true;
                return;
            }
            if (size < 0) { /* the other end is gone: both directions are over */
                half->has_passed_all = half->other->has_passed_all = true;
                return;
            }
        }
        piece->written += size;
        half->in_flight -= size;
        if (piece->written == piece->size) {
            half->first = piece->next;
            free(piece);
        }
    }
}

static void free_ended(void) {
    for (struct half **at = &halves; *at != NULL;) {
        struct half *half = *at;
        if (!half->has_passed_all || (half->other != NULL && !half->other->has_passed_all)) {
            at = &half->next;
            continue;
        }
        *at = half->next;
        close(half->fd);
        while (half->first != NULL) {
            struct piece *piece = half->first;
            half->first = piece->next;
            free(piece);
        }
        if (half->other != NULL)
            half->other->other = NULL;
        free(half);
    }
}

/* Passes on what is due. Returns when the next piece is due; 0 if there is none. */
static long long pass_all_on(void) {
    long long at = now(), next = 0;
    for (struct half *half = halves; half != NULL; half = half->next)
        pass_on(half, at);
    free_ended();
    for (struct half *half = halves; half != NULL; half = half->next) {
        bool reads = !half->has_ended && half->in_flight < IN_FLIGHT_MAX;
        watch(half, (reads ? EPOLLIN : 0) | (half->other->is_blocked ? EPOLLOUT : 0));
        if (half->first != NULL && !half->is_blocked && (next == 0 || half->first->due < next))
            next = half->first->due;
    }
    return next;
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    half_trip = atoll(arguments[2]) * 1000 / 2;
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct sockaddr_in here = server;
    here.sin_port = 0;
    socklen_t length = sizeof here;
    int listener = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
    checked(bind(listener, (struct sockaddr *)&here, length), "bind");
    checked(listen(listener, 128), "listen");
    checked(getsockname(listener, (struct sockaddr *)&here, &length), "getsockname");
    poller = checked(epoll_create1(0), "epoll_create1");
    int timer = checked(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), "timerfd_create");
    struct half listening = {.fd = listener}, timing = {.fd = timer};
    watch(&listening, EPOLLIN);
    watch(&timing, EPOLLIN);
    printf("%d\n", ntohs(here.sin_port));
    fflush(stdout);
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        int found = epoll_wait(poller, events, EVENTS_MAX, -1);
        for (int i = 0; i < found; i++) {
            struct half *half = events[i].data.ptr;
            unsigned long long ticks;
            if (half == &listening)
                accept_one(listener, &server);
            else if (half == &timing)
                (void)!read(timer, &ticks, sizeof ticks);
            else {
                if (events[i].events & EPOLLOUT)
                    half->other->is_blocked = false;
                if (!half->has_ended && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                    read_some(half);
            }
        }
        long long next = pass_all_on();
        struct itimerspec due = {.it_value = {next / SECOND, next % SECOND}};
        checked(timerfd_settime(timer, TFD_TIMER_ABSTIME, &due, NULL), "timerfd_settime");
    }
}
