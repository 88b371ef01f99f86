/* sandbox.c: the sandboxes that are served, each from the message that announces it to the end of its first process. */
#include "control.h"
#include "judge.h"
#include "publish.h"
#include "relay.h"
#include <errno.h>
#include <linux/nsfs.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

static struct sandbox *sandboxes;
static int64_t next_tick;

int sandboxes_left(void)
{
    return sandboxes != NULL;
}

static void close_all(struct sandbox *s)
{
    connections_end(s);
    flows_end(s);
    streams_end(s);
    asks_end(s);
    publications_end(s->id);
    struct source *sources[] = {&s->end, &s->tap, &s->udp_tap, &s->dns_udp, &s->dns_tcp};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        loop_close(sources[i]);
    for (int i = 0; i < MOST_LISTENERS; i++)
        loop_close(&s->listeners[i].source);
    for (int i = 0; i < s->n_localhost; i++)
        loop_close(&s->localhost[i].source);
    while (s->n_spares)
        close(s->spares[--s->n_spares]);
    const int others[] = {s->out, s->user_namespace, s->net_namespace};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (others[i] >= 0)
            close(others[i]);
}

void sandbox_free(struct sandbox *s)
{
    if (s->is_ended && !s->n_questions && !s->n_jobs)
        later_free(s);
}

int sandbox_is_over_limit(struct sandbox *s, size_t bytes)
{
    s->bytes += bytes;
    return list.head->bytes && s->bytes > list.head->bytes;
}

static void sandbox_end(struct sandbox *s)
{
    struct sandbox **link = &sandboxes;
    while (*link && *link != s)
        link = &(*link)->next;
    if (*link)
        *link = s->next;
    close_all(s);
    s->is_ended = 1;
    sandbox_free(s);
}

/* Nothing of the sandbox runs any more: the kernel has ended everything with its first process (pid_namespaces(7)). */
static void on_end(struct source *source, uint32_t events)
{
    (void)events;
    sandbox_end((struct sandbox *)(void *)((char *)source - offsetof(struct sandbox, end)));
}

struct sandbox *sandbox_newest(void)
{
    return sandboxes;
}

int sandbox_listens(const struct sandbox *s, uint16_t port)
{
    for (int i = 0; i < s->n_localhost; i++)
        if (s->localhost[i].source.fd >= 0 && s->localhost[i].port == port)
            return 1;
    return 0;
}

int sandbox_watch(struct listener *listener)
{
    if (listener->source.fd < 0 || listener->is_watched)
        return 0;
    listener->is_watched = 1;
    return loop_add(&listener->source, EPOLLIN);
}

static int watch_all(struct sandbox *s)
{
    struct source *sources[] = {&s->end, &s->tap, &s->udp_tap, &s->dns_udp, &s->dns_tcp};
    int ret = 0;
    for (size_t i = 0; i < sizeof sources / sizeof *sources && !ret; i++)
        ret = sources[i]->fd < 0 ? 0 : loop_add(sources[i], EPOLLIN);
    for (int i = 0; i < s->n_localhost && !ret; i++)
        ret = sandbox_watch(&s->localhost[i]);
    return ret;
}

static struct sandbox *make(uint64_t id, int net_namespace, int process)
{
    struct sandbox *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    static uint64_t last;
    s->id = id;
    s->serial = ++last;
    s->net_namespace = net_namespace;
    s->end = (struct source){on_end, process, NULL};
    s->tap = (struct source){on_tap, -1, s};
    s->udp_tap = (struct source){on_udp_tap, -1, s};
    s->dns_udp = (struct source){on_dns_udp, -1, s};
    s->dns_tcp = (struct source){on_dns_tcp, -1, s};
    s->out = -1;
    for (int i = 0; i < MOST_LISTENERS; i++)
        s->listeners[i].source.fd = -1;
    s->user_namespace = ioctl(net_namespace, NS_GET_USERNS); /* its owner: ioctl_ns(2), Linux 4.9 */
    s->next = sandboxes;
    sandboxes = s;
    return s;
}

void sandbox_open(uint64_t id, int net_namespace, int process, int answer)
{
    const char *step = "memory";
    struct sandbox *s = make(id, net_namespace, process);
    if (!s) {
        close(net_namespace);
        close(process);
        tell_ready(answer, id, -ENOMEM, step);
        return;
    }
    int ret = enter_set_up(s, &list, &step);
    if (!ret) {
        step = "watch";
        ret = watch_all(s);
    }
    tell_ready(answer, id, ret, step);
    if (ret)
        sandbox_end(s);
}

int sandboxes_tick(void)
{
    int64_t time = now();
    if (time >= next_tick) {
        next_tick = time + SECOND;
        asks_tick(time);
        names_tick(time);
        publications_resume();
        for (struct sandbox *s = sandboxes; s; s = s->next) {
            flows_tick(s, time);
            streams_tick(s, time);
            streams_resume(s);
            listeners_resume(s);
        }
    }
    int64_t soonest = next_tick;
    for (struct sandbox *s = sandboxes; s; s = s->next) {
        if (s->next_tick <= time)
            s->next_tick = connections_tick(s);
        if (s->next_tick < soonest)
            soonest = s->next_tick;
    }
    return soonest > time ? (int)(soonest - time) : 0;
}
