/* connect.c: the outside. The relay connects to the server before it lets the client in, so the client learns what
 * really happens. */
#include "connection.h"
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { IDLE = 300, INTERVAL = 75 }; /* seconds; a silent server is then probed */
enum {
    NEXT_ATTEMPT = 250 /* RFC 8305 */,
    CONNECT = 130 * SECOND,
    GONE = 924 * SECOND /* the default of tcp_retries2, tcp(7) */
};

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

/* Report what the caller doesn't know yet: the client, or its sandbox, has ended the connection. */
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
    const union address asked = address_of(c->syn.target);
    tell(&(struct event){.sandbox = c->sandbox,
                         .id = c->publication,
                         .what = c->publication ? NSBOX_NET_PUBLISHED : NSBOX_NET_CONNECT,
                         .verdict = verdict,
                         .reason = reason,
                         .error = error,
                         .port = c->syn.target_port,
                         .target = c->n_attempts               ? &c->targets[c->winner]
                                   : c->name || c->publication ? NULL
                                                               : &asked,
                         .name = c->name ? c->name->text : NULL,
                         .milliseconds = now() - c->started});
}

void connection_fail(struct connection *c, int error, uint32_t verdict, uint32_t reason)
{
    tell_connect(c, verdict, reason,
                 error); /* report it first, so that a caller that sees the client's end has the event */
    c->is_told = 1;
    syn_refuse(c->sandbox, &c->syn, error);
    connection_end(c);
}

void connection_abort(struct connection *c, int error)
{
    const struct linger reset = {1, 0};
    setsockopt(c->server.source.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    tell_connect(c, NSBOX_NET_FAILED, NSBOX_NET_NO_REASON, error);
    c->is_told = 1;
    connection_end(c);
}

/* End the sandbox's connections. A command may have sent something last, and ended. */
void connections_end(struct sandbox *sandbox)
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct connection *c = sandbox->connections[i], *next; c; c = next) {
            next = c->next;
            pump_rest(c);
        }
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

void set_patience(int fd)
{
    int room = BUFFER, on = 1, idle = IDLE, interval = INTERVAL, patience = GONE;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);
}

static void won(struct attempt *attempt)
{
    struct connection *c = attempt->connection;
    c->winner = (int)(attempt - c->attempts);
    c->server.source.fd = attempt->source.fd;
    attempt->source.fd = -1;
    loop_change(&c->server.source, 0);
    close_attempts(c);
    set_patience(c->server.source.fd);
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

/* Connect now. A nonblocking connect(2) never waits for the answer, but on this machine the answer has come by the
 * time it returns. */
int connect_now(int fd, const struct sockaddr *to, socklen_t size)
{
    if (connect(fd, to, size) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return -errno;
    if (connect(fd, to, size) == 0 || errno == EISCONN)
        return 0;
    return errno == EALREADY ? -EINPROGRESS : -errno;
}

/* Begin to connect to one address. 1: connected at once, as on the host's loopback; 0: it goes on; -errno: it failed
 * at once. */
static int begin_attempt(struct attempt *attempt, const union address *target)
{
    attempt->source = (struct source){on_attempt, -1, attempt->connection->sandbox};
    int fd = within_share(socket(target->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return -errno;
    attempt->source.fd = fd;
    int ret = connect_now(fd, &target->any, address_size(target)), is_open = ret == 0;
    if (is_open || ret == -EINPROGRESS)
        ret = loop_add(&attempt->source, is_open ? 0 : EPOLLOUT);
    if (!ret && is_open && is_to_itself(fd))
        ret = -ECONNREFUSED;
    if (ret < 0)
        loop_close(&attempt->source);
    return ret < 0 ? ret : is_open;
}

/* Try the next address. If all fail, the client gets the first failure: the host prefers the first address. */
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

/* Choose which of a name's addresses may be connected to. The addresses that are judged here are those that are
 * connected to: no other answer of the resolver comes in between. */
static void choose_targets(struct connection *c, uint32_t *reason)
{
    *reason = NSBOX_NET_UPSTREAM;
    for (int i = 0; i < c->name->n_targets; i++) {
        const union address *target = &c->name->targets[i];
        if (may_reach(target, c->syn.target_port, PROTOCOL_TCP, reason)) {
            c->targets[c->n_targets] = *target;
            address_set_port(&c->targets[c->n_targets++], c->syn.target_port);
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
    union address *target = &c->targets[c->n_targets++];
    memset(target, 0, sizeof *target);
    target->any.sa_family = (sa_family_t)family;
    if (family == AF_INET6)
        target->six.sin6_addr = in6addr_loopback;
    else
        target->four.sin_addr.s_addr = htonl(c->syn.target);
    address_set_port(target, c->syn.target_port);
}

/* The connection may go on: find out the address. */
void connection_proceed(struct connection *c)
{
    c->state = RESOLVING;
    c->deadline = now() + CONNECT;
    if (c->name) {
        c->is_waiting = 1;
        c->waiter.done = on_name;
        resolve(c->sandbox, c->name, &c->waiter);
        return;
    }
    add_target(c, AF_INET);
    if (c->syn.target == INADDR_LOOPBACK)
        add_target(c, AF_INET6);
    begin_connect(c);
}

struct connection *connection_new(struct sandbox *sandbox, const struct syn *syn)
{
    struct connection *c = calloc(1, sizeof *c), **first = &sandbox->connections[syn->source_port % BUCKETS];
    if (!c)
        return NULL;
    *c = (struct connection){
        .sandbox = sandbox, .syn = *syn, .started = now(), .deadline = INT64_MAX, .next_attempt = INT64_MAX};
    c->client = c->server = (struct side){.source = {on_side, -1, sandbox}, .connection = c};
    c->next = *first;
    c->link = first;
    if (c->next)
        c->next->link = &c->next;
    *first = c;
    sandbox->n_connections++;
    return c;
}

void connection_begin(struct sandbox *sandbox, const struct syn *syn, struct name *name, struct ask *ask)
{
    struct connection *c = connection_new(sandbox, syn);
    if (!c) {
        syn_refuse(sandbox, syn, ECONNREFUSED);
        return;
    }
    c->name = name;
    c->ask = ask;
    if (!ask || ask->answer == ANSWER_YES)
        connection_proceed(c);
}

void connections_answered(const struct ask *ask)
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct connection *c = ask->sandbox->connections[i], *next; c; c = next) {
            next = c->next;
            if (c->state != ASKING || c->ask != ask)
                continue;
            if (ask->answer == ANSWER_YES)
                connection_proceed(c);
            else
                connection_fail(c, error_of_refusal(&c->syn, c->name), NSBOX_NET_REFUSED, NSBOX_NET_ASKED);
        }
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
    else if (c->state == DIALING && c->deadline <= time)
        connection_abort(c, ETIMEDOUT);
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
