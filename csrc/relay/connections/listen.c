/* listen.c: the inside. Makes a listener for a server's address as soon as we are connected to the server; then the
 * SYN goes to it. */
#include "connection.h"
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { ACCEPTS_PER_TURN = 64, ACCEPT = 5 * SECOND, BACKLOG = 4096 };

/* Returns a free listener, or the least recently used one that no connection is on its way to; NULL: there is none. */
static struct listener *oldest(struct sandbox *sandbox)
{
    struct listener *choice = NULL;
    for (int i = 0; i < MOST_LISTENERS; i++) {
        struct listener *l = &sandbox->listeners[i];
        if (l->source.fd < 0)
            return l;
        if (!l->n_expected && (!choice || l->used < choice->used))
            choice = l;
    }
    return choice;
}

static int open_listener(struct listener *l, int fd)
{
    int on = 1, room = BUFFER;
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(l->port), .sin_addr.s_addr = htonl(l->address)};
    l->source = (struct source){on_listener, fd, l->sandbox};
    /* With this, a server that never reads costs the host little: accepted sockets inherit it. */
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    int ret = filter_listener(fd);
    if (ret == -EPERM) /* since Linux 6.18 or so this needs power over the namespace, which root's relay lacks */
        ret = enter_filter(l->sandbox, fd);
    if (ret)
        return ret;
    if (bind(fd, (const struct sockaddr *)&at, sizeof at) < 0 || listen(fd, BACKLOG) < 0)
        return -errno;
    return loop_add(&l->source, EPOLLIN);
}

/* Find or make the listener, *choice; 0 or -errno: EADDRINUSE if the command itself listens at this port, on all addresses. */
static int find_listener(struct sandbox *sandbox, uint32_t address, uint16_t port, struct listener **choice)
{
    static uint64_t uses;
    const char *step;
    for (int i = 0; i < MOST_LISTENERS; i++) {
        struct listener *l = &sandbox->listeners[i];
        if (l->source.fd >= 0 && l->address == address && l->port == port) {
            l->used = ++uses;
            *choice = l;
            return 0;
        }
    }
    struct listener *old = oldest(sandbox);
    if (!old)
        return -EMFILE;
    int ret = sandbox->n_spares ? 0 : enter_spares(sandbox, &step);
    if (ret)
        return ret;
    struct listener new = {.sandbox = sandbox, .address = address, .port = port, .used = ++uses};
    loop_close(&old->source);
    *old = new;
    ret = open_listener(old, sandbox->spares[--sandbox->n_spares]);
    if (ret)
        loop_close(&old->source);
    *choice = old;
    return ret;
}

static int is_local(const struct connection *c)
{
    return !c->name && c->syn.target == INADDR_LOOPBACK;
}

void let_in(struct connection *c)
{
    int ret = is_local(c) ? 0 : find_listener(c->sandbox, c->syn.target, c->syn.target_port, &c->listener);
    if (ret) {
        connection_fail(c, ECONNREFUSED, NSBOX_NET_REFUSED,
                        ret == -EADDRINUSE ? NSBOX_NET_PORT_TAKEN : NSBOX_NET_LIMIT);
        return;
    }
    if (c->listener)
        c->listener->n_expected++;
    c->state = ACCEPTING;
    c->deadline = now() + ACCEPT;
    packet_seal(&c->syn);
    send_packet(c->sandbox, c->syn.bytes, c->syn.size, c->syn.target);
}

/* Nothing waits for this client: it had given up, or its connection has been ended meanwhile. */
static void close_with_reset(int fd)
{
    const struct linger reset = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}

static void come(struct listener *l, int fd, const struct sockaddr_in *from)
{
    const struct syn syn = {.source = ntohl(from->sin_addr.s_addr),
                            .source_port = ntohs(from->sin_port),
                            .target = l->address,
                            .target_port = l->port};
    struct connection *c = connection_find(l->sandbox, &syn);
    if (!c || c->state != ACCEPTING) {
        close_with_reset(fd);
        return;
    }
    if (c->listener)
        c->listener->n_expected--;
    tell_connect(c, NSBOX_NET_ALLOWED, c->ask ? NSBOX_NET_ASKED : NSBOX_NET_NO_REASON, 0);
    pump_start(c, fd);
}

void on_listener(struct source *source, uint32_t events)
{
    struct listener *l = (struct listener *)(void *)source;
    (void)events;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct sockaddr_in from;
        socklen_t size = sizeof from;
        int fd = within_share(accept4(source->fd, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd < 0 && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
            l->is_paused = 1; /* no descriptor is free: epoll(7) would report what waits again and again */
            loop_change(source, 0);
        }
        if (fd < 0)
            return;
        come(l, fd, &from);
    }
}

static void resume(struct listener *l)
{
    if (l->source.fd < 0 || !l->is_paused)
        return;
    l->is_paused = 0;
    loop_change(&l->source, EPOLLIN);
}

void listeners_resume(struct sandbox *sandbox)
{
    for (int i = 0; i < MOST_LISTENERS; i++)
        resume(&sandbox->listeners[i]);
    for (int i = 0; i < sandbox->n_localhost; i++)
        resume(&sandbox->localhost[i]);
}
