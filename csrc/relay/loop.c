/* loop.c: one thread, one epoll(7) set, and memory that is freed after the events which name it. */
#include "relay.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { MOST_EVENTS = 256 };

/* What is to be freed: its first bytes are used for the list. */
struct dead {
    struct dead *next;
};

static int set = -1;
static struct dead *dead;

int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
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
        close(source->fd); /* which takes it out of the set: nobody else has its open file */
    source->fd = -1;
}

void later_free(void *memory)
{
    struct dead *one = memory;
    one->next = dead;
    dead = one;
}

void loop_run(int (*tick)(void))
{
    struct epoll_event events[MOST_EVENTS];
    for (int wait = 0;; wait = tick()) {
        int n = epoll_wait(set, events, MOST_EVENTS, wait);
        for (int i = 0; i < n; i++) {
            struct source *source = events[i].data.ptr;
            if (source->fd >= 0)
                source->ready(source, events[i].events);
        }
        while (dead) {
            struct dead *one = dead;
            dead = one->next;
            free(one);
        }
    }
}
