/* publish.c: publishes ports of servers inside to clients outside: what connects to a socket of the host is led to
 * 127.0.0.1 inside.
 *
 * In such a connection too, `client` is the side in the sandbox, and `server` the one outside: bytes count as sent
 * if they leave the sandbox.
 */
#include "connection.h"
#include "publish.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { ACCEPTS_PER_TURN = 16, DIAL = 30 * SECOND, MOST_PUBLICATIONS = 1024 };

struct publication {
    struct source source;
    uint64_t id, sandbox; /* sandbox: 0 for all */
    uint16_t port;
    int is_paused; /* no descriptor was free for a new connection */
    struct publication *next;
};

static struct publication *publications;
static int n_publications;

static void tell_published(const struct publication *p, const struct sandbox *sandbox, uint32_t verdict,
                           uint32_t reason, int error)
{
    tell(&(struct event){.sandbox = sandbox,
                         .id = p->id,
                         .what = NSBOX_NET_PUBLISHED,
                         .verdict = verdict,
                         .reason = reason,
                         .error = error,
                         .port = p->port});
}

static void close_with_reset(int fd)
{
    const struct linger reset = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}

/* Returns the newest sandbox of the publication that is older than this one. */
static struct sandbox *next_sandbox(const struct publication *p, uint64_t before)
{
    struct sandbox *s = sandbox_newest();
    while (s && (s->serial >= before || (p->sandbox && p->sandbox != s->id)))
        s = s->next;
    return s;
}

/* Connect one of the sandbox's spare sockets. Its packets are marked, so that our tap doesn't mistake them for the
 * command's. 0: connected; or -errno, which may be -EINPROGRESS. */
static int dial(struct sandbox *s, uint16_t port, int *fd)
{
    const char *step;
    int room = BUFFER, ret = s->n_spares ? 0 : enter_spares(s, &step);
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (ret)
        return ret;
    *fd = s->spares[--s->n_spares];
    setsockopt(*fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    ret = connect_now(*fd, (const struct sockaddr *)&to, sizeof to);
    return ret == 0 && is_to_itself(*fd) ? -ECONNREFUSED : ret;
}

static void on_dialed(struct source *source, uint32_t events);

static void relay(struct connection *c, int inside)
{
    c->attempts[0].source.fd = -1;
    tell_connect(c, NSBOX_NET_ALLOWED, NSBOX_NET_NO_REASON, 0);
    pump_start(c, inside);
}

/* Returns the connection, dialled or about to be. NULL: another sandbox may have such a server, or this one can have
 * no more connections. */
static struct connection *connect_in(const struct publication *p, struct sandbox *s, int outside, int *error)
{
    const struct syn syn = {.source_port = (uint16_t)outside, .target_port = p->port};
    int inside = -1;
    *error = -dial(s, p->port, &inside);
    struct connection *c = *error == 0 || *error == EINPROGRESS ? connection_new(s, &syn) : NULL;
    if (!c) {
        if (inside >= 0)
            close(inside);
        return NULL;
    }
    socklen_t size = sizeof c->targets[0];
    c->publication = p->id;
    c->state = DIALING;
    c->deadline = now() + DIAL;
    c->n_attempts = c->n_targets = 1;
    c->attempts[0] = (struct attempt){.source = {on_dialed, inside, s}, .connection = c};
    c->server.source.fd = outside;
    if (getpeername(outside, &c->targets[0].any, &size) < 0)
        c->targets[0].any.sa_family = AF_UNSPEC;
    set_patience(outside);
    if (loop_add(&c->server.source, 0) < 0 || (*error == EINPROGRESS && loop_add(&c->attempts[0].source, EPOLLOUT) < 0))
        c->deadline = 0; /* the next tick ends it */
    else if (*error == 0)
        relay(c, inside);
    return c;
}

/* Find a server for this client, in a sandbox older than `before`. */
static void serve_client(const struct publication *p, int outside, uint64_t before)
{
    struct sandbox *s = next_sandbox(p, before);
    int error = ECONNREFUSED;
    for (; s; s = next_sandbox(p, s->serial)) {
        if (s->n_connections >= list.head->connections) {
            tell_published(p, s, NSBOX_NET_REFUSED, NSBOX_NET_LIMIT, 0);
            close_with_reset(outside);
            return;
        }
        if (connect_in(p, s, outside, &error))
            return;
        if (p->sandbox)
            break;
    }
    tell_published(p, s, NSBOX_NET_FAILED, NSBOX_NET_NO_REASON, error);
    close_with_reset(outside);
}

static struct publication *find(uint64_t id)
{
    struct publication *p = publications;
    while (p && p->id != id)
        p = p->next;
    return p;
}

/* Nothing listens there, or it doesn't answer: try another sandbox. */
void publication_fail(struct connection *c, int error)
{
    const struct publication *p = find(c->publication);
    int outside = c->server.source.fd;
    uint64_t serial = c->sandbox->serial;
    if (!p || p->sandbox) {
        connection_abort(c, error);
        return;
    }
    loop_remove(&c->server.source);
    c->server.source.fd = -1;
    c->is_told = 1;
    connection_end(c);
    serve_client(p, outside, serial);
}

static void on_dialed(struct source *source, uint32_t events)
{
    struct connection *c = ((struct attempt *)(void *)source)->connection;
    int error = 0, inside = source->fd;
    socklen_t size = sizeof error;
    (void)events;
    if (getsockopt(inside, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
        error = errno;
    if (!error && is_to_itself(inside))
        error = ECONNREFUSED;
    if (error) {
        publication_fail(c, error);
        return;
    }
    loop_remove(source);
    relay(c, inside);
}

static void on_publication(struct source *source, uint32_t events)
{
    struct publication *p = (struct publication *)(void *)source;
    (void)events;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
            p->is_paused = 1;
            loop_change(source, 0);
        }
        if (fd < 0)
            return;
        serve_client(p, fd, UINT64_MAX);
    }
}

void publications_resume(void)
{
    for (struct publication *p = publications; p; p = p->next)
        if (p->is_paused) {
            p->is_paused = 0;
            loop_change(&p->source, EPOLLIN);
        }
}

/* Check the socket: it must be a listening one, and mustn't block us. */
static int check(int fd, const nsbox_net_message *message)
{
    int listens = 0, type = 0;
    socklen_t size = sizeof listens, its = sizeof type;
    if (!message->id || message->value < 1 || message->value > UINT16_MAX)
        return EINVAL;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &its) < 0)
        return errno;
    if (!listens || type != SOCK_STREAM)
        return EINVAL;
    if (find(message->id))
        return EEXIST;
    int flags = fcntl(fd, F_GETFL);
    return fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}

void publish(const nsbox_net_message *message, int fd)
{
    struct publication new = {.source = {on_publication, fd, NULL},
                              .id = message->id,
                              .sandbox = message->sandbox,
                              .port = (uint16_t)message->value,
                              .next = publications};
    int error = check(fd, message);
    struct publication *p = error || n_publications == MOST_PUBLICATIONS ? NULL : malloc(sizeof *p);
    if (p)
        *p = new;
    if (!p || (error = -loop_add(&p->source, EPOLLIN))) {
        tell_published(&new, NULL, NSBOX_NET_FAILED, NSBOX_NET_NO_REASON, error ? error : ENOMEM);
        close(fd);
        free(p);
        return;
    }
    publications = p;
    n_publications++;
}

static void take_out(struct publication **link)
{
    struct publication *p = *link;
    *link = p->next;
    n_publications--;
    loop_close(&p->source);
    later_free(p);
}

void unpublish(uint64_t id)
{
    for (struct publication **link = &publications; *link; link = &(*link)->next)
        if ((*link)->id == id) {
            take_out(link);
            return;
        }
}

void publications_end(uint64_t sandbox)
{
    for (struct publication **link = &publications; *link;)
        if (sandbox == EVERY_SANDBOX || (*link)->sandbox == sandbox)
            take_out(link);
        else
            link = &(*link)->next;
}
