/* connect.c: outside. The server is connected to before the client is let in: so the client learns what really happens. */
#include "connection.h"
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { NEXT_ATTEMPT = 250 /* RFC 8305 */, CONNECT = 130 * SECOND, GONE = 300 * SECOND };

/* ---- answers to the client */

void send_packet(const struct sandbox *sandbox, const uint8_t *packet, size_t size, uint32_t target)
{
    const struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(target)};
    sendto(sandbox->out, packet, size, 0, (const struct sockaddr *)&to, sizeof to); /* one that is lost is sent again */
}

/* Answer a SYN so that connect(2) fails with this errno, or one that says the same. */
void refuse(const struct sandbox *sandbox, const struct syn *syn, int error)
{
    uint8_t packet[64];
    size_t size;
    switch (error) {
    case ENETUNREACH:
        size = packet_unreachable(packet, syn, ICMP_NET);
        break;
    case EHOSTUNREACH:
    case ETIMEDOUT:
        size = packet_unreachable(packet, syn, ICMP_HOST);
        break;
    case EACCES:
        size = packet_unreachable(packet, syn, ICMP_POLICY);
        break;
    default:
        size = packet_reset(packet, syn);
    }
    send_packet(sandbox, packet, size, syn->source);
}

/* ---- the end */

static void close_side(struct side *side)
{
    loop_close(&side->source);
    free(side->rest);
    side->rest = NULL;
}

static void close_attempts(struct connection *c)
{
    for (int i = 0; i < c->n_attempts; i++)
        loop_close(&c->attempts[i].source);
}

/* What nobody has told the caller yet: the client, or its sandbox, has ended it. */
static void tell_rest(struct connection *c)
{
    if (c->state == RELAYING)
        tell_close(c, 0, 0);
    else
        tell_connect(c, NSBOX_NET_FAILED, 0, ECONNABORTED);
}

void connection_end(struct connection *c)
{
    if (!c->is_told)
        tell_rest(c);
    close_attempts(c);
    close_side(&c->client);
    close_side(&c->server);
    free(c->hello);
    c->hello = NULL;
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    c->sandbox->n_connections--;
    if (c->is_waiting)
        resolve_forget(&c->waiter);
    if (c->listener && c->state == ACCEPTING)
        c->listener->n_expected--;
    c->state = ENDED;
    later_free(c);
}

void tell_connect(const struct connection *c, uint32_t verdict, uint32_t reason, int error)
{
    tell(&(struct event){.sandbox = c->sandbox,
                         .what = NSBOX_NET_CONNECT,
                         .verdict = verdict,
                         .reason = reason,
                         .error = error,
                         .port = c->syn.target_port,
                         .target = c->n_attempts ? &c->targets[c->winner] : NULL,
                         .name = c->name ? c->name->text : NULL,
                         .milliseconds = now() - c->started});
}

void connection_fail(struct connection *c, int error, uint32_t verdict, uint32_t reason)
{
    refuse(c->sandbox, &c->syn, error);
    tell_connect(c, verdict, reason, error);
    c->is_told = 1;
    connection_end(c);
}

void connections_end(struct sandbox *sandbox)
{
    for (int i = 0; i < BUCKETS; i++)
        while (sandbox->connections[i])
            connection_end(sandbox->connections[i]);
}

struct connection *connection_find(const struct sandbox *sandbox, const struct syn *syn)
{
    struct connection *c = sandbox->connections[syn->source_port % BUCKETS];
    while (c && !(c->syn.source_port == syn->source_port && c->syn.source == syn->source &&
                  c->syn.target == syn->target && c->syn.target_port == syn->target_port))
        c = c->next;
    return c;
}

/* ---- outside */

/* A connection to oneself, which a port of the host's own may come to that nobody listens at (RFC 9293, 3.5). */
static int is_to_itself(int fd)
{
    union target here, there;
    socklen_t size = sizeof here, its = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return !getsockname(fd, &here.any, &size) && !getpeername(fd, &there.any, &its) &&
           !memcmp(&here, &there, sizeof here);
}

static void won(struct attempt *attempt)
{
    struct connection *c = attempt->connection;
    int room = BUFFER, on = 1, patience = GONE;
    c->winner = (int)(attempt - c->attempts);
    c->server.source.fd = attempt->source.fd;
    attempt->source.fd = -1;
    loop_change(&c->server.source, 0);
    close_attempts(c);
    /* What a server that never reads costs the host is bounded; one that has gone is noticed. */
    setsockopt(c->server.source.fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    setsockopt(c->server.source.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(c->server.source.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);
    let_in(c);
}

static void try_next(struct connection *c);

static void on_attempt(struct source *source, uint32_t events)
{
    struct attempt *attempt = (struct attempt *)(void *)source;
    struct connection *c = attempt->connection;
    socklen_t size = sizeof attempt->error;
    (void)events;
    if (getsockopt(source->fd, SOL_SOCKET, SO_ERROR, &attempt->error, &size) < 0)
        attempt->error = errno;
    if (!attempt->error && is_to_itself(source->fd))
        attempt->error = ECONNREFUSED;
    if (!attempt->error) {
        won(attempt);
        return;
    }
    loop_close(source);
    c->n_failed++;
    try_next(c);
}

/* Begin to connect to one address. 1: it is, at once, as on the host's loopback; 0, or -errno of what failed at once. */
static int begin_attempt(struct attempt *attempt, const union target *target)
{
    int is_six = target->any.sa_family == AF_INET6;
    socklen_t size = is_six ? sizeof target->six : sizeof target->four;
    attempt->source = (struct source){on_attempt, -1};
    int fd = socket(target->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    attempt->source.fd = fd;
    int is_open = connect(fd, &target->any, size) == 0;
    int ret = is_open || errno == EINPROGRESS ? loop_add(&attempt->source, is_open ? 0 : EPOLLOUT) : -errno;
    if (!ret && is_open && is_to_itself(fd))
        ret = -ECONNREFUSED;
    if (ret < 0)
        loop_close(&attempt->source);
    return ret < 0 ? ret : is_open;
}

/* The first failure is what the client hears: the first address is the one that the host prefers. */
static void try_next(struct connection *c)
{
    while (c->n_attempts < c->n_targets) {
        struct attempt *attempt = &c->attempts[c->n_attempts];
        attempt->connection = c;
        int ret = begin_attempt(attempt, &c->targets[c->n_attempts++]);
        if (ret == 1) {
            won(attempt);
            return;
        }
        attempt->error = -ret;
        if (ret == 0) {
            c->next_attempt = now() + NEXT_ATTEMPT;
            if (c->sandbox->next_tick > c->next_attempt)
                c->sandbox->next_tick = c->next_attempt;
            return;
        }
        c->n_failed++;
    }
    c->next_attempt = INT64_MAX;
    if (c->n_failed == c->n_attempts)
        connection_fail(c, c->attempts[0].error, NSBOX_NET_FAILED, NSBOX_NET_UPSTREAM);
}

static void begin_connect(struct connection *c)
{
    c->state = CONNECTING;
    c->deadline = now() + CONNECT;
    try_next(c);
}

static void set_port(union target *target, uint16_t port)
{
    if (target->any.sa_family == AF_INET6)
        target->six.sin6_port = htons(port);
    else
        target->four.sin_port = htons(port);
}

/* Which of a name's addresses may be connected to. What is judged here is what is connected to: no other answer of the
 * resolver's gets in between. */
static void choose_targets(struct connection *c, uint32_t *reason)
{
    *reason = NSBOX_NET_UPSTREAM;
    for (int i = 0; i < c->name->n_targets; i++) {
        const union target *target = &c->name->targets[i];
        if (may_reach(target, c->syn.target_port, PROTOCOL_TCP, reason)) {
            c->targets[c->n_targets] = *target;
            set_port(&c->targets[c->n_targets++], c->syn.target_port);
        }
    }
}

static void on_name(struct waiter *waiter, struct name *name)
{
    struct connection *c = (struct connection *)(void *)((char *)waiter - offsetof(struct connection, waiter));
    uint32_t reason;
    (void)name;
    c->is_waiting = 0;
    choose_targets(c, &reason);
    if (c->n_targets)
        begin_connect(c);
    else
        connection_fail(c, reason == NSBOX_NET_UPSTREAM ? EHOSTUNREACH : EACCES,
                        reason == NSBOX_NET_UPSTREAM ? NSBOX_NET_FAILED : NSBOX_NET_REFUSED, reason);
}

static void add_target(struct connection *c, int family)
{
    union target *target = &c->targets[c->n_targets++];
    memset(target, 0, sizeof *target);
    target->any.sa_family = (sa_family_t)family;
    if (family == AF_INET6)
        target->six.sin6_addr = in6addr_loopback;
    else
        target->four.sin_addr.s_addr = htonl(c->syn.target);
    set_port(target, c->syn.target_port);
}

void connection_begin(struct sandbox *sandbox, const struct syn *syn, struct name *name)
{
    struct connection *c = calloc(1, sizeof *c), **first = &sandbox->connections[syn->source_port % BUCKETS];
    if (!c) {
        refuse(sandbox, syn, ECONNREFUSED);
        return;
    }
    *c =
        (struct connection){.sandbox = sandbox, .name = name, .syn = *syn, .started = now(), .next_attempt = INT64_MAX};
    c->client = c->server = (struct side){.source = {on_side, -1}, .connection = c};
    c->next = *first;
    c->link = first;
    if (c->next)
        c->next->link = &c->next;
    *first = c;
    sandbox->n_connections++;
    c->deadline = c->started + CONNECT;
    if (name) {
        c->is_waiting = 1;
        c->waiter.done = on_name;
        resolve(sandbox, name, &c->waiter);
        return;
    }
    add_target(c, AF_INET);
    if (syn->target == INADDR_LOOPBACK)
        add_target(c, AF_INET6);
    begin_connect(c);
}

/* ---- time */

static void tick(struct connection *c, int64_t time)
{
    if (c->state == RELAYING) {
        if (c->deadline <= time && is_hold_over(c))
            connection_reset(c, NSBOX_NET_NO_TLS, 0);
    } else if (c->state == ACCEPTING && c->deadline <= time)
        connection_end(c); /* the client has gone meanwhile */
    else if (c->state < ACCEPTING && c->deadline <= time)
        connection_fail(c, ETIMEDOUT, NSBOX_NET_FAILED, NSBOX_NET_UPSTREAM);
    else if (c->state == CONNECTING && c->next_attempt <= time)
        try_next(c);
}

int64_t connections_tick(struct sandbox *sandbox)
{
    int64_t time = now(), soonest = time + SECOND;
    for (int i = 0; i < BUCKETS; i++) {
        for (struct connection *c = sandbox->connections[i], *next; c; c = next) {
            next = c->next;
            tick(c, time);
        }
        for (struct connection *c = sandbox->connections[i]; c; c = c->next)
            if (c->state == CONNECTING && c->next_attempt < soonest)
                soonest = c->next_attempt;
    }
    return soonest;
}
