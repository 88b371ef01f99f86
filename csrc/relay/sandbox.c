/* sandbox.c: serves each sandbox, from the message that announces it to the end of its first process. */
#include "control.h"
#include "relay/base/events.h"
#include "relay/base/judge.h"
#include "relay/base/relay.h"
#include "relay/connections/publish.h"
#include <errno.h>
#include <linux/nsfs.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int64_t next_tick;

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

static void sandbox_end(struct sandbox *s)
{
    sandbox_remove(s);
    close_all(s);
    s->is_ended = 1;
    sandbox_free(s);
}

/* Nothing of the sandbox runs any more: when its first process ended, the kernel ended all others
 * (pid_namespaces(7)). */
static void on_end(struct source *source, uint32_t events)
{
    (void)events;
    sandbox_end((struct sandbox *)(void *)((char *)source - offsetof(struct sandbox, end)));
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

static struct sandbox *make(const nsbox_net_message *message, int net_namespace, int process)
{
    struct sandbox *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    static uint64_t last;
    s->id = message->sandbox;
    s->outlives = message->value;
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
    for (int i = 0; i < MOST_PORTS; i++)
        s->localhost[i].source.ready = on_listener;
    s->user_namespace = ioctl(net_namespace, NS_GET_USERNS); /* its owner: ioctl_ns(2), Linux 4.9 */
    sandbox_add(s);
    return s;
}

void sandbox_open(const nsbox_net_message *message, int net_namespace, int process, int answer)
{
    const char *step = "memory";
    uint64_t id = message->sandbox;
    struct sandbox *s = make(message, net_namespace, process);
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

void sandboxes_end_with_caller(void)
{
    for (struct sandbox *s = sandbox_newest(), *next; s; s = next) {
        next = s->next;
        if (!s->outlives)
            sandbox_end(s);
    }
}

int sandboxes_tick(void)
{
    int64_t time = now();
    if (time >= next_tick) {
        next_tick = time + SECOND;
        asks_tick(time);
        names_tick(time);
        publications_resume();
        for (struct sandbox *s = sandbox_newest(); s; s = s->next) {
            flows_tick(s, time);
            streams_tick(s, time);
            streams_resume(s);
            listeners_resume(s);
        }
    }
    int64_t soonest = next_tick;
    for (struct sandbox *s = sandbox_newest(); s; s = s->next) {
        if (s->next_tick <= time)
            s->next_tick = connections_tick(s);
        if (s->next_tick < soonest)
            soonest = s->next_tick;
    }
    return soonest > time ? (int)(soonest - time) : 0;
}
