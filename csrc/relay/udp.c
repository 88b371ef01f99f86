/* udp.c: datagrams to listed ports. Each client and destination is a flow, with a socket of the host's, until it is idle. */
#include "events.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { DATAGRAMS_PER_TURN = 64, IDLE = 60 * SECOND, MOST_DATAGRAM = 65536, MOST_WAITING = 4096 };

struct flow {
    struct source source;
    struct sandbox *sandbox;
    int inside; /* the socket in the sandbox that its datagrams came by */
    struct sockaddr_in client;
    uint32_t target;
    uint16_t port;
    struct name *name;
    int64_t used, started;
    uint64_t sent, received;
    struct flow *next, **link;
};

/* A name's first datagram, until it is known where to. Others that come meanwhile are lost, as they may be. */
struct datagram {
    struct waiter waiter;
    struct sandbox *sandbox;
    const struct udp_port *port;
    struct sockaddr_in client;
    size_t size;
    uint8_t bytes[MOST_WAITING];
};

static uint8_t buffer[MOST_DATAGRAM];

static void tell_flow(const struct flow *flow, const union target *target, uint32_t what)
{
    tell(&(struct event){.sandbox = flow->sandbox,
                         .what = what,
                         .verdict = NSBOX_NET_ALLOWED,
                         .protocol = PROTOCOL_UDP,
                         .port = flow->port,
                         .target = target,
                         .name = flow->name ? flow->name->text : NULL,
                         .sent = flow->sent,
                         .received = flow->received,
                         .milliseconds = now() - flow->started});
}

static void end(struct flow *flow)
{
    tell_flow(flow, NULL, NSBOX_NET_CLOSE);
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
        end(sandbox->flows);
}

void flows_tick(struct sandbox *sandbox, int64_t time)
{
    for (struct flow *flow = sandbox->flows, *next; flow; flow = next) {
        next = flow->next;
        if (time - flow->used > IDLE)
            end(flow);
    }
}

/* An answer, from the address that the client has asked: ip(7), IP_PKTINFO. */
static void answer(const struct flow *flow, size_t size)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct in_pktinfo))] = {0};
    struct sockaddr_in to = flow->client;
    struct iovec part = {buffer, size};
    struct msghdr message = {.msg_name = &to,
                             .msg_namelen = sizeof to,
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    const struct in_pktinfo from = {.ipi_spec_dst.s_addr = htonl(flow->target)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = IPPROTO_IP;
    head->cmsg_type = IP_PKTINFO;
    head->cmsg_len = CMSG_LEN(sizeof from);
    memcpy(CMSG_DATA(head), &from, sizeof from);
    sendmsg(flow->inside, &message, 0);
}

static void refuse(const struct sandbox *sandbox, const struct sockaddr_in *client, uint32_t target, uint16_t port,
                   size_t size)
{
    uint8_t packet[64];
    size_t n =
        packet_unreachable_udp(packet, ntohl(client->sin_addr.s_addr), ntohs(client->sin_port), target, port, size);
    const struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = client->sin_addr};
    sendto(sandbox->out, packet, n, 0, (const struct sockaddr *)&to, sizeof to);
}

static void on_answer(struct source *source, uint32_t events)
{
    struct flow *flow = (struct flow *)(void *)source;
    (void)events;
    for (int i = 0; i < DATAGRAMS_PER_TURN; i++) {
        ssize_t n = recv(source->fd, buffer, sizeof buffer, 0);
        if (n < 0 && errno == ECONNREFUSED) {
            refuse(flow->sandbox, &flow->client, flow->target, flow->port, 0);
            end(flow);
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

static struct flow *find(const struct sandbox *sandbox, const struct sockaddr_in *client, uint32_t target,
                         uint16_t port)
{
    struct flow *flow = sandbox->flows;
    while (flow && !(flow->target == target && flow->port == port && flow->client.sin_port == client->sin_port &&
                     flow->client.sin_addr.s_addr == client->sin_addr.s_addr))
        flow = flow->next;
    return flow;
}

static struct flow *begin(const struct udp_port *port, const struct sockaddr_in *client, uint32_t target,
                          struct name *name, union target *to)
{
    struct sandbox *sandbox = port->sandbox;
    struct flow *flow = sandbox->n_flows < MOST_FLOWS ? calloc(1, sizeof *flow) : NULL;
    int is_six = to->any.sa_family == AF_INET6;
    if (!flow)
        return NULL;
    *(is_six ? &to->six.sin6_port : &to->four.sin_port) = htons(port->port);
    *flow = (struct flow){.sandbox = sandbox,
                          .inside = port->source.fd,
                          .client = *client,
                          .target = target,
                          .port = port->port,
                          .name = name,
                          .started = now(),
                          .used = now()};
    flow->source = (struct source){on_answer, socket(to->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (flow->source.fd < 0 || connect(flow->source.fd, &to->any, is_six ? sizeof to->six : sizeof to->four) < 0 ||
        loop_add(&flow->source, EPOLLIN) < 0) {
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
    tell_flow(flow, to, NSBOX_NET_DATAGRAM);
    return flow;
}

static void pass(struct flow *flow, const uint8_t *bytes, size_t size)
{
    flow->used = now();
    flow->sent += size;
    if (!sandbox_is_over_limit(flow->sandbox, size))
        send(flow->source.fd, bytes, size, 0);
}

static void turn_away(const struct udp_port *port, const struct sockaddr_in *client, uint32_t target,
                      const struct name *name, size_t size, uint32_t reason)
{
    const union target to = {.four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(target)}};
    refuse(port->sandbox, client, target, port->port, size);
    tell(&(struct event){.sandbox = port->sandbox,
                         .what = NSBOX_NET_DATAGRAM,
                         .verdict = NSBOX_NET_REFUSED,
                         .reason = reason,
                         .protocol = PROTOCOL_UDP,
                         .port = port->port,
                         .target = name ? NULL : &to,
                         .name = name ? name->text : NULL});
}

static void on_name(struct waiter *waiter, struct name *name)
{
    struct datagram *d = (struct datagram *)(void *)waiter;
    struct sandbox *sandbox = d->sandbox;
    uint32_t reason = NSBOX_NET_UPSTREAM;
    int i = 0;
    if (!sandbox->is_ended) {
        while (i < name->n_targets && !may_reach(&name->targets[i], d->port->port, PROTOCOL_UDP, &reason))
            i++;
        if (i < name->n_targets && sandbox->n_flows == MOST_FLOWS)
            reason = NSBOX_NET_LIMIT;
        union target to = name->targets[i < name->n_targets ? i : 0];
        struct flow *flow = i < name->n_targets ? begin(d->port, &d->client, name->address, name, &to) : NULL;
        if (flow)
            pass(flow, d->bytes, d->size);
        else
            turn_away(d->port, &d->client, name->address, name, d->size, reason);
    }
    free(d);
    sandbox->n_questions--;
    sandbox_free(sandbox);
}

static void look_up(const struct udp_port *port, const struct sockaddr_in *client, struct name *name, size_t size)
{
    int can = size <= MOST_WAITING && !name->is_busy && port->sandbox->n_questions < MOST_FLOWS;
    struct datagram *d = can ? malloc(sizeof *d) : NULL;
    if (!d)
        return;
    *d = (struct datagram){.waiter = {.done = on_name}, .sandbox = port->sandbox, .port = port, .client = *client};
    d->size = size;
    memcpy(d->bytes, buffer, size);
    port->sandbox->n_questions++;
    resolve(port->sandbox, name, &d->waiter);
}

static void on_datagram(const struct udp_port *port, const struct sockaddr_in *client, uint32_t target, size_t size)
{
    struct flow *flow = find(port->sandbox, client, target, port->port);
    struct name *name = name_by_address(target);
    union target to = {.four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(target)}};
    if (flow) {
        pass(flow, buffer, size);
        return;
    }
    enum verdict verdict = name ? rules_name_port(&list, name->text, port->port, PROTOCOL_UDP)
                                : rules_address(&list, target, port->port, PROTOCOL_UDP, 1);
    if (verdict != VERDICT_YES)
        turn_away(port, client, target, name, size,
                  verdict == VERDICT_DENIED ? NSBOX_NET_DENIED : NSBOX_NET_NOT_LISTED);
    else if (name)
        look_up(port, client, name, size);
    else if ((flow = begin(port, client, target, NULL, &to)))
        pass(flow, buffer, size);
    else
        turn_away(port, client, target, NULL, size, NSBOX_NET_LIMIT);
}

/* The address that a datagram was for. 0: it isn't said. */
static uint32_t target_of(struct msghdr *message)
{
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        struct in_pktinfo info;
        if (head->cmsg_level != IPPROTO_IP || head->cmsg_type != IP_PKTINFO)
            continue;
        memcpy(&info, CMSG_DATA(head), sizeof info);
        return ntohl(info.ipi_addr.s_addr);
    }
    return 0;
}

void on_udp(struct source *source, uint32_t events)
{
    struct udp_port *port = (struct udp_port *)(void *)source;
    (void)events;
    for (int i = 0; i < DATAGRAMS_PER_TURN; i++) {
        _Alignas(struct cmsghdr) char control[256];
        struct sockaddr_in client;
        struct iovec part = {buffer, sizeof buffer};
        struct msghdr message = {.msg_name = &client,
                                 .msg_namelen = sizeof client,
                                 .msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        ssize_t n = recvmsg(source->fd, &message, 0);
        if (n < 0)
            return;
        uint32_t target = target_of(&message);
        if (target && target >> 24 != 127)
            on_datagram(port, &client, target, (size_t)n);
    }
}
