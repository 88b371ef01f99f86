/* loop.c: one thread, one epoll(7) set, and memory that is freed only after the events that point to it. */
#include "relay.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MOST_EVENTS = 256, BUDGET = 2000000 /* nanoseconds of a turn, for one sandbox */, RESERVE = 256 };

/* Memory to be freed: its first bytes link the list. */
struct dead {
    struct dead *next;
};

static int set = -1;
static struct dead *dead;

static int64_t nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t now(void)
{
    return nanoseconds() / 1000000;
}

int loop_add(struct source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    if (set < 0)
        set = epoll_create1(EPOLL_CLOEXEC);
    return epoll_ctl(set, EPOLL_CTL_ADD, source->fd, &event) < 0 ? -errno : 0;
}

void loop_change(struct source *source, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    epoll_ctl(set, EPOLL_CTL_MOD, source->fd, &event);
}

void loop_remove(struct source *source)
{
    epoll_ctl(set, EPOLL_CTL_DEL, source->fd, NULL);
}

void loop_close(struct source *source)
{
    if (source->fd >= 0)
        close(source->fd); /* this removes it from the set: no other process has its open file */
    source->fd = -1;
}

int within_share(int fd)
{
    static int end;
    struct rlimit limit;
    if (!end && !getrlimit(RLIMIT_NOFILE, &limit))
        end = (int)(limit.rlim_cur - (limit.rlim_cur < 4 * RESERVE ? limit.rlim_cur / 4 : RESERVE));
    if (fd < end || !end)
        return fd;
    close(fd);
    errno = EMFILE;
    return -1;
}

void later_free(void *memory)
{
    struct dead *one = memory;
    one->next = dead;
    dead = one;
}

/* Has the sandbox had its share of this turn? Then it waits for the next one: epoll(7) reports its events again. */
static int has_spent(struct sandbox *sandbox, uint64_t turn)
{
    if (sandbox->turn != turn) {
        sandbox->turn = turn;
        sandbox->spent = 0;
    }
    return sandbox->spent > BUDGET;
}

static void serve(const struct epoll_event *events, int n, uint64_t turn)
{
    int64_t before = nanoseconds();
    for (int i = 0; i < n; i++) {
        struct source *source = events[i].data.ptr;
        struct sandbox *sandbox = source->sandbox;
        if (source->fd < 0 || (sandbox && has_spent(sandbox, turn)))
            continue;
        source->ready(source, events[i].events);
        int64_t after = nanoseconds();
        if (sandbox)
            sandbox->spent += after - before;
        before = after;
    }
}

void loop_run(int (*tick)(void))
{
    struct epoll_event events[MOST_EVENTS];
    uint64_t turn = 0;
    for (int wait = 0;; wait = tick()) {
        serve(events, epoll_wait(set, events, MOST_EVENTS, wait), ++turn);
        while (dead) {
            struct dead *one = dead;
            dead = one->next;
            free(one);
        }
    }
}
