/* udp.c: datagrams, as a raw socket sees them. Each pair of client and destination is a flow, with a socket of the
 * host's, until it is idle. No port inside is ours: a command may use any of them for a server of its own.
 */
#include "relay/base/events.h"
#include "relay/base/judge.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { DATAGRAMS_PER_TURN = 64, IDLE = 60 * SECOND, MOST_HELD = 64 };

/* The sender and the destination. */
struct path {
    uint32_t client, target;
    uint16_t client_port, port;
};

struct flow {
    struct source source;
    struct sandbox *sandbox;
    struct path path;
    struct name *name;
    union address server;
    int64_t used, started;
    uint64_t sent, received;
    struct flow *next, **link;
};

/* A name's first datagram, kept until its address is known. Others that come meanwhile are lost, as datagrams may
 * be. */
struct held_datagram {
    struct waiter waiter;
    struct sandbox *sandbox;
    struct path path;
    size_t size;
    uint8_t bytes[];
};

static uint8_t buffer[DATAGRAM_MOST + 1]; /* what comes, with its headers; or what goes in, with room for them */

static void tell_flow(const struct flow *flow, uint32_t what, uint32_t reason, int error)
{
    uint32_t verdict = reason && reason != NSBOX_NET_UPSTREAM ? NSBOX_NET_REFUSED : NSBOX_NET_ALLOWED;
    tell(&(struct event){.sandbox = flow->sandbox,
                         .what = what,
                         .verdict = verdict,
                         .reason = reason,
                         .error = error,
                         .protocol = PROTOCOL_UDP,
                         .port = flow->path.port,
                         .target = &flow->server,
                         .name = flow->name ? flow->name->text : NULL,
                         .sent = flow->sent,
                         .received = flow->received,
                         .milliseconds = now() - flow->started});
}

static void flow_end(struct flow *flow, uint32_t reason, int error)
{
    tell_flow(flow, NSBOX_NET_CLOSE, reason, error);
    loop_close(&flow->source);
    *flow->link = flow->next;
    if (flow->next)
        flow->next->link = flow->link;
    flow->sandbox->n_flows--;
    later_free(flow);
}

void flows_end(struct sandbox *sandbox)
{
    while (sandbox->flows)
        flow_end(sandbox->flows, 0, 0);
}

void flows_tick(struct sandbox *sandbox, int64_t time)
{
    for (struct flow *flow = sandbox->flows, *next; flow; flow = next) {
        next = flow->next;
        if (time - flow->used > IDLE)
            flow_end(flow, 0, 0);
    }
}

/* Returns why the flow may not go on, or 0 if it may. Another entry may have allowed its name's address. */
static uint32_t revoked(const struct flow *flow)
{
    const struct destination to = {flow->name, flow->path.target, flow->path.port, PROTOCOL_UDP};
    enum verdict verdict = judge(&to);
    uint32_t reason = 0;
    if (verdict != VERDICT_YES)
        return reason_of_refusal(&to, verdict);
    return !flow->name || may_reach(&flow->server, flow->path.port, PROTOCOL_UDP, &reason) ? 0 : reason;
}

/* After a new list, end what it no longer allows. */
void flows_revoke(struct sandbox *sandbox)
{
    for (struct flow *flow = sandbox->flows, *next; flow; flow = next) {
        next = flow->next;
        uint32_t reason = revoked(flow);
        if (reason)
            flow_end(flow, reason, 0);
    }
}

/* Send an answer from the address that the client sent to; its data is in the buffer, after room for the headers. */
static void answer(const struct flow *flow, size_t size)
{
    const struct path *path = &flow->path;
    packet_datagram_head(buffer, &(struct datagram){.source = path->target,
                                                    .source_port = path->port,
                                                    .target = path->client,
                                                    .target_port = path->client_port,
                                                    .size = size});
    send_packet(flow->sandbox, buffer, DATAGRAM_HEAD + size, path->client);
}

/* Returns an ICMP code that means this error; one of those that a UDP socket reports without having asked
 * (IP_RECVERR, ip(7)). */
static int code_of(int error)
{
    if (error == ENETUNREACH)
        return ICMP_NET_PROHIBITED;
    return error == ECONNREFUSED ? ICMP_PORT : ICMP_POLICY; /* this gives the client EHOSTUNREACH */
}

static void datagram_refuse(const struct sandbox *sandbox, const struct path *path, size_t size, int error)
{
    uint8_t packet[64];
    const struct datagram its = {.source = path->client,
                                 .source_port = path->client_port,
                                 .target = path->target,
                                 .target_port = path->port,
                                 .size = size};
    send_packet(sandbox, packet, packet_unreachable_udp(packet, &its, code_of(error)), path->client);
}

/* End a flow that has no listener. Report it first, so that a caller that sees what the client sees has the event. */
static void flow_end_refused(struct flow *flow)
{
    const struct path path = flow->path;
    const struct sandbox *sandbox = flow->sandbox;
    flow_end(flow, NSBOX_NET_UPSTREAM, ECONNREFUSED);
    datagram_refuse(sandbox, &path, 0, ECONNREFUSED);
}

static void on_answer(struct source *source, uint32_t events)
{
    struct flow *flow = (struct flow *)(void *)source;
    (void)events;
    for (int i = 0; i < DATAGRAMS_PER_TURN; i++) {
        ssize_t n = recv(source->fd, buffer + DATAGRAM_HEAD, sizeof buffer - DATAGRAM_HEAD, 0);
        if (n < 0 && errno == ECONNREFUSED) {
            flow_end_refused(flow);
            return;
        }
        if (n < 0)
            return;
        flow->used = now();
        flow->received += (uint64_t)n;
        if (!sandbox_is_over_limit(flow->sandbox, (size_t)n))
            answer(flow, (size_t)n);
    }
}

static struct flow *find(const struct sandbox *sandbox, const struct path *path)
{
    struct flow *flow = sandbox->flows;
    while (flow && !(flow->path.target == path->target && flow->path.port == path->port &&
                     flow->path.client == path->client && flow->path.client_port == path->client_port))
        flow = flow->next;
    return flow;
}

/* Connect a flow's socket. 0, or the host's errno. */
static int flow_connect(struct flow *flow)
{
    const union address *to = &flow->server;
    flow->source.fd = within_share(socket(to->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (flow->source.fd < 0)
        return errno;
    socklen_t size = to->any.sa_family == AF_INET6 ? sizeof to->six : sizeof to->four;
    return connect(flow->source.fd, &to->any, size) < 0 || loop_add(&flow->source, EPOLLIN) < 0 ? errno : 0;
}

/* Begin a flow. NULL: error says why not; 0: a limit of the sandbox, or of descriptors. */
static struct flow *flow_begin(struct sandbox *sandbox, const struct path *path, struct name *name, union address *to,
                               int *error)
{
    struct flow *flow = sandbox->n_flows < MOST_FLOWS ? calloc(1, sizeof *flow) : NULL;
    *error = 0;
    if (!flow)
        return NULL;
    *(to->any.sa_family == AF_INET6 ? &to->six.sin6_port : &to->four.sin_port) = htons(path->port);
    *flow = (struct flow){.sandbox = sandbox, .path = *path, .name = name, .server = *to};
    flow->started = flow->used = now();
    flow->source = (struct source){on_answer, -1, sandbox};
    int ret = flow_connect(flow);
    if (ret) {
        *error = flow->source.fd < 0 ? 0 : ret;
        loop_close(&flow->source);
        free(flow);
        return NULL;
    }
    flow->next = sandbox->flows;
    flow->link = &sandbox->flows;
    if (flow->next)
        flow->next->link = &flow->next;
    sandbox->flows = flow;
    sandbox->n_flows++;
    tell_flow(flow, NSBOX_NET_DATAGRAM, 0, 0);
    return flow;
}

static void pass(struct flow *flow, const uint8_t *bytes, size_t size)
{
    flow->used = now();
    flow->sent += size;
    if (!sandbox_is_over_limit(flow->sandbox, size))
        send(flow->source.fd, bytes, size, 0);
}

/* Was it reported in this second that datagrams to this destination are refused? From now on it is. */
static int is_told_of(struct sandbox *sandbox, const struct path *path)
{
    int64_t second = now() / SECOND;
    for (int i = 0; i < MOST_TOLD; i++) {
        struct told_udp *told = &sandbox->told_udp[i];
        if (told->address == path->target && told->port == path->port && told->second == second)
            return 1;
    }
    sandbox->told_udp[sandbox->n_told_udp++ % MOST_TOLD] = (struct told_udp){path->target, path->port, second};
    return 0;
}

static void refuse_datagram(struct sandbox *sandbox, const struct path *path, const struct name *name, size_t size,
                            uint32_t reason, int error)
{
    const union address to = address_of(path->target);
    if (!is_told_of(sandbox, path))
        tell(&(struct event){.sandbox = sandbox,
                             .what = NSBOX_NET_DATAGRAM,
                             .verdict = reason == NSBOX_NET_UPSTREAM ? NSBOX_NET_FAILED : NSBOX_NET_REFUSED,
                             .reason = reason,
                             .error = error,
                             .protocol = PROTOCOL_UDP,
                             .port = path->port,
                             .target = name ? NULL : &to,
                             .name = name ? name->text : NULL});
    if (sandbox->refuses_udp)
        datagram_refuse(sandbox, path, size,
                        error); /* do this last, so that a caller that sees what the client sees has the event */
}

/* Begin a flow with its first datagram. */
static void open_flow(struct sandbox *sandbox, const struct path *path, struct name *name, union address to,
                      const uint8_t *data, size_t size)
{
    int error;
    struct flow *flow = flow_begin(sandbox, path, name, &to, &error);
    if (flow)
        pass(flow, data, size);
    else
        refuse_datagram(sandbox, path, name, size, error ? NSBOX_NET_UPSTREAM : NSBOX_NET_LIMIT,
                        error ? error : ECONNREFUSED);
}

static void send_held(const struct held_datagram *held, struct name *name)
{
    uint32_t reason = NSBOX_NET_UPSTREAM;
    int i = 0;
    while (i < name->n_targets && !may_reach(&name->targets[i], held->path.port, PROTOCOL_UDP, &reason))
        i++;
    if (i < name->n_targets)
        open_flow(held->sandbox, &held->path, name, name->targets[i], held->bytes, held->size);
    else
        refuse_datagram(held->sandbox, &held->path, name, held->size, reason,
                        reason == NSBOX_NET_UPSTREAM ? EHOSTUNREACH : EACCES);
}

static void on_name(struct waiter *waiter, struct name *name)
{
    struct held_datagram *held = (struct held_datagram *)(void *)waiter;
    struct sandbox *sandbox = held->sandbox;
    const struct destination to = {name, 0, held->path.port, PROTOCOL_UDP};
    if (!sandbox->is_ended && judge(&to) == VERDICT_YES)
        send_held(held, name);
    free(held);
    sandbox->n_questions--;
    sandbox_free(sandbox);
}

static void hold_datagram(struct sandbox *sandbox, const struct path *path, struct name *name, const uint8_t *data,
                          size_t size)
{
    int can = !name->is_busy && sandbox->n_questions < MOST_HELD;
    struct held_datagram *held = can ? malloc(sizeof *held + size) : NULL;
    if (!held)
        return;
    held->waiter = (struct waiter){.done = on_name};
    held->sandbox = sandbox;
    held->path = *path;
    held->size = size;
    memcpy(held->bytes, data, size);
    sandbox->n_questions++;
    resolve(sandbox, name, &held->waiter);
}

static void on_datagram(struct sandbox *sandbox, const struct datagram *datagram)
{
    const struct path path = {datagram->source, datagram->target, datagram->source_port, datagram->target_port};
    struct flow *flow = find(sandbox, &path);
    struct name *name = name_by_address(path.target);
    if (name)
        name_use(sandbox, name);
    const struct destination to = {name, path.target, path.port, PROTOCOL_UDP};
    const union address target = address_of(path.target);
    if (flow) {
        pass(flow, datagram->data, datagram->size);
        return;
    }
    enum verdict verdict = judge(&to);
    if (verdict != VERDICT_YES)
        refuse_datagram(sandbox, &path, name, datagram->size, reason_of_refusal(&to, verdict), ECONNREFUSED);
    else if (name)
        hold_datagram(sandbox, &path, name, datagram->data, datagram->size);
    else
        open_flow(sandbox, &path, NULL, target, datagram->data, datagram->size);
}

void on_udp_tap(struct source *source, uint32_t events)
{
    struct sandbox *sandbox = (struct sandbox *)(void *)((char *)source - offsetof(struct sandbox, udp_tap));
    (void)events;
    for (int i = 0; i < DATAGRAMS_PER_TURN; i++) {
        struct datagram datagram;
        ssize_t n = recv(source->fd, buffer, sizeof buffer, 0);
        if (n < 0)
            return;
        if (packet_datagram(buffer, (size_t)n, &datagram))
            on_datagram(sandbox, &datagram);
    }
}
