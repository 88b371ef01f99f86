/* replacement.c: puts a new list in place of the one in force, and ends what it no longer allows. */
#include "control.h"
#include "relay/base/events.h"
#include "relay/base/relay.h"
#include "relay/connections/connection.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

/* ---- existing connections */

/* Returns why the connection may not go on, or 0 if it may. Its address is judged again too, since another entry may
 * have allowed that. */
static uint32_t revoked(struct connection *c, enum verdict verdict, const struct destination *to)
{
    uint32_t reason;
    if (verdict == VERDICT_DENIED)
        return NSBOX_NET_DENIED;
    if (verdict == VERDICT_NO && !(c->ask && may_ask(to)))
        return reason_of_refusal(to, verdict);
    for (int i = 0; c->name && c->state >= CONNECTING && i < c->n_targets; i++)
        if ((c->state == CONNECTING || i == c->winner) &&
            !may_reach(&c->targets[i], c->syn.target_port, PROTOCOL_TCP, &reason))
            return reason;
    return 0;
}

static void rejudge(struct connection *c)
{
    const struct destination to = {c->name, c->syn.target, c->syn.target_port, PROTOCOL_TCP};
    if (c->publication)
        return;
    enum verdict verdict = judge(&to);
    uint32_t reason = revoked(c, verdict, &to);
    if (reason && c->state == RELAYING)
        connection_reset(c, reason, 0);
    else if (reason)
        connection_fail(c, error_of_refusal(&c->syn, c->name), NSBOX_NET_REFUSED, reason);
    else if (verdict == VERDICT_YES && c->state == ASKING) {
        c->ask = NULL; /* the caller needn't be asked any more */
        connection_proceed(c);
    }
}

static void connections_revoke(struct sandbox *sandbox)
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct connection *c = sandbox->connections[i], *next; c; c = next) {
            next = c->next;
            rejudge(c);
        }
}

/* ---- existing sandboxes */

static int is_listed(uint16_t port)
{
    for (uint32_t i = 0; i < list.head->n_rules; i++) {
        const nsbox_net_rule *rule = &list.rules[i];
        if (rule->kind == NSBOX_NET_LOCALHOST && !(rule->flags & NSBOX_NET_DENY) && port >= rule->first_port &&
            port <= rule->last_port)
            return 1;
    }
    return 0;
}

/* Replace the tap, without losing what the old one has seen. */
static void replace_tap(struct sandbox *s, int old)
{
    int fd = s->tap.fd;
    s->tap.fd = old;
    on_tap(&s->tap, EPOLLIN);
    loop_close(&s->tap);
    s->tap.fd = fd;
}

static void tell_port_taken(const struct sandbox *s, uint16_t port)
{
    const union address target = address_of(INADDR_LOOPBACK);
    tell(&(struct event){.sandbox = s,
                         .what = NSBOX_NET_CONNECT,
                         .verdict = NSBOX_NET_REFUSED,
                         .reason = NSBOX_NET_PORT_TAKEN,
                         .error = EADDRINUSE,
                         .port = port,
                         .target = &target});
}

/* Report the ports at which the command itself listens; it goes on. */
static void tell_ports_taken(const struct sandbox *s)
{
    for (uint32_t i = 0; i < list.head->n_rules; i++) {
        const nsbox_net_rule *rule = &list.rules[i];
        if (rule->kind != NSBOX_NET_LOCALHOST || rule->flags & NSBOX_NET_DENY)
            continue;
        for (uint32_t port = rule->first_port; port <= rule->last_port; port++)
            if (!sandbox_listens(s, (uint16_t)port))
                tell_port_taken(s, (uint16_t)port);
    }
}

static int update(struct sandbox *s, const char **step)
{
    int old_tap = s->tap.fd, had_udp = s->udp_tap.fd >= 0;
    connections_revoke(s);
    flows_revoke(s);
    for (int i = 0; i < s->n_localhost; i++)
        if (!is_listed(s->localhost[i].port))
            loop_close(&s->localhost[i].source);
    int ret = enter_update(s, &list, step);
    if (s->tap.fd != old_tap) {
        replace_tap(s, old_tap);
        ret = ret ? ret : loop_add(&s->tap, EPOLLIN);
    }
    if (!had_udp && s->udp_tap.fd >= 0)
        ret = ret ? ret : loop_add(&s->udp_tap, EPOLLIN);
    for (int i = 0; i < s->n_localhost && !ret; i++)
        ret = sandbox_watch(&s->localhost[i]);
    if (!ret)
        tell_ports_taken(s);
    return ret;
}

void list_replace(int fd, int answer)
{
    struct rules old = list, new;
    const char *step = "list", *its_step;
    int ret = list_load(fd, &new);
    close(fd);
    if (ret) {
        tell_ready(answer, 0, ret, step);
        return;
    }
    list = new; /* in force, even if its routes and ports fail */
    for (struct sandbox *s = sandbox_newest(); s; s = s->next) {
        int its = update(s, &its_step);
        if (its && !ret) {
            ret = its;
            step = its_step;
        }
    }
    free((void *)(uintptr_t)old.head);
    tell_ready(answer, 0, ret, step);
}
