/* pump.c: moves bytes from one side of a connection to the other. It keeps what a side doesn't accept, and then
 * reads no more. */
#include "connection.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { BUFFERS_PER_TURN = 16, LEAST_SPLICED = BUFFER / 4 };

static uint8_t buffer[BUFFER];      /* shared by all connections */
static int pipe_ends[2] = {-1, -1}; /* shared too: empty except during a call */

static struct side *other(const struct side *side)
{
    struct connection *c = side->connection;
    return side == &c->client ? &c->server : &c->client;
}

void tell_close(struct connection *c, uint32_t reason, int error)
{
    uint32_t verdict = reason && reason != NSBOX_NET_UPSTREAM ? NSBOX_NET_REFUSED : NSBOX_NET_ALLOWED;
    c->is_told = 1;
    tell(&(struct event){.sandbox = c->sandbox,
                         .id = c->publication,
                         .what = NSBOX_NET_CLOSE,
                         .verdict = verdict,
                         .reason = reason,
                         .error = error,
                         .port = c->syn.target_port,
                         .target = &c->targets[c->winner],
                         .name = c->name ? c->name->text : NULL,
                         .sni = c->sni,
                         .sent = c->client.bytes,
                         .received = c->server.bytes,
                         .milliseconds = now() - c->started});
}

void connection_reset(struct connection *c, uint32_t reason, int error)
{
    const struct linger reset = {1, 0};
    setsockopt(c->client.source.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    setsockopt(c->server.source.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    connection_close(c, reason, error);
}

void connection_close(struct connection *c, uint32_t reason, int error)
{
    tell_close(c, reason, error);
    connection_end(c);
}

/* Wait for what this side can do next: be read, unless the other side's bytes pile up; accept what is kept for it. A
 * side that can do nothing, and to which nothing more is sent, is removed from the set: epoll(7) would report its
 * EPOLLHUP again and again. */
static void await(struct side *side)
{
    int is_full = side->rest_size > 0;
    uint32_t events = (side->is_read || is_full ? 0 : EPOLLIN) | (other(side)->rest_size ? EPOLLOUT : 0);
    int is_out = !events && side->is_shut;
    if (is_out && !side->is_out)
        loop_remove(&side->source);
    else if (!is_out && side->is_out)
        loop_add(&side->source, events);
    else if (!is_out && events != side->events)
        loop_change(&side->source, events);
    side->is_out = is_out;
    side->events = events;
}

/* Keep what the other side doesn't accept, behind what is kept already. */
static int keep(struct side *from, const uint8_t *bytes, size_t size)
{
    uint8_t *rest = malloc(from->rest_size + size);
    if (!rest)
        return -ENOMEM;
    if (from->rest_size)
        memcpy(rest, from->rest + from->rest_at, from->rest_size);
    memcpy(rest + from->rest_size, bytes, size);
    free(from->rest);
    from->rest = rest;
    from->rest_at = 0;
    from->rest_size += size;
    return 0;
}

static int broken(struct side *side, int error)
{
    side->is_broken = 1;
    return -error;
}

/* Pass on to the other side what came from a side. 0, or -errno. */
int pump_send(struct side *from, const uint8_t *bytes, size_t size)
{
    size_t sent = 0;
    from->bytes += size;
    if (!from->rest_size) {
        ssize_t n = send(other(from)->source.fd, bytes, size, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            return broken(other(from), errno);
        sent = n < 0 ? 0 : (size_t)n;
    }
    return sent == size ? 0 : keep(from, bytes + sent, size - sent);
}

static int send_rest(struct side *from)
{
    ssize_t n = send(other(from)->source.fd, from->rest + from->rest_at, from->rest_size, MSG_NOSIGNAL);
    if (n < 0)
        return errno == EAGAIN ? 0 : broken(other(from), errno);
    from->rest_at += (size_t)n;
    from->rest_size -= (size_t)n;
    if (!from->rest_size) {
        free(from->rest);
        from->rest = NULL;
    }
    return 0;
}

/* Pass on the end of what a side sends, once everything before it has been passed on. */
static void shut(struct side *from)
{
    if (!from->is_read || from->rest_size || other(from)->is_shut)
        return;
    other(from)->is_shut = 1;
    shutdown(other(from)->source.fd, SHUT_WR);
}

static int pass(struct side *side, size_t size)
{
    struct connection *c = side->connection;
    if (side == &c->server)
        hold_answer(c, buffer, size);
    return side == &c->client && c->watch != WATCH_OVER ? hold(c, buffer, size) : pump_send(side, buffer, size);
}

/* Count the bytes. -ECANCELED: the connection has ended, because of its sandbox's limit. */
static int count(struct side *side, size_t size)
{
    struct connection *c = side->connection;
    if (!sandbox_is_over_limit(c->sandbox, size))
        return 0;
    connection_reset(c, NSBOX_NET_LIMIT, 0);
    return -ECANCELED;
}

static void drop_pipe(void)
{
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    pipe_ends[0] = pipe_ends[1] = -1;
}

/* Keep what is left in the pipe. */
static int keep_pipe(struct side *from, size_t size)
{
    while (size) {
        ssize_t n = read(pipe_ends[0], buffer, size < sizeof buffer ? size : sizeof buffer);
        int ret = n <= 0 ? -EIO : keep(from, buffer, (size_t)n);
        if (ret < 0)
            return ret;
        size -= (size_t)n;
    }
    return 0;
}

/* Send what is in the pipe. 0, or -errno. */
static int send_pipe(struct side *from, size_t size)
{
    while (size) {
        ssize_t n = splice(pipe_ends[0], NULL, other(from)->source.fd, NULL, size, SPLICE_F_NONBLOCK);
        if (n < 0 && errno != EAGAIN)
            return broken(other(from), errno);
        if (n <= 0)
            return keep_pipe(from, size);
        size -= (size_t)n;
    }
    return 0;
}

/* Pass on large amounts without a copy, by splice(2). Returns how much came; 0: leave it to recv(2), if there is
 * anything; -errno.
 *
 * What is spliced keeps whole pages of its sender's from being freed, though only its bytes are counted. The pipe
 * keeps the small size that it is made with: its 16 pieces hold either many bytes, or this was the last time until
 * much comes again.
 */
static ssize_t splice_side(struct side *side)
{
    if (pipe_ends[0] < 0 && pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return 0;
    ssize_t n = splice(side->source.fd, NULL, pipe_ends[1], NULL, BUFFER, SPLICE_F_NONBLOCK);
    side->is_bulk = n >= LEAST_SPLICED;
    if (n < 0 && errno == ECONNRESET) /* recv(2) would then report an end instead of this error */
        return broken(side, errno);
    if (n <= 0)
        return 0;
    int ret = count(side, (size_t)n);
    if (!ret) {
        side->bytes += (uint64_t)n;
        ret = send_pipe(side, (size_t)n);
    }
    if (ret)
        drop_pipe(); /* its contents belong to this connection alone */
    return ret ? ret : n;
}

/* Pass on what recv(2) returns. Returns how much; 0: the end, or nothing for now; -errno. */
static ssize_t receive_side(struct side *side)
{
    ssize_t n = recv(side->source.fd, buffer, sizeof buffer, 0);
    if (n < 0)
        return errno == EAGAIN ? 0 : broken(side, errno);
    side->is_read = n == 0;
    side->is_bulk = n == sizeof buffer;
    int ret = n ? count(side, (size_t)n) : 0;
    if (!ret && n)
        ret = pass(side, (size_t)n);
    return ret ? ret : n;
}

/* Read from a side, and pass it on. 0, or -errno; -ECANCELED: the connection has ended. */
static int read_side(struct side *side)
{
    struct connection *c = side->connection;
    for (int i = 0; i < BUFFERS_PER_TURN && !side->rest_size && !side->is_read; i++) {
        ssize_t n = side->is_bulk && c->watch == WATCH_OVER ? splice_side(side) : 0;
        if (n == 0)
            n = receive_side(side);
        if (n < 0)
            return (int)n;
        if (!side->is_bulk)
            break; /* epoll(7) would report more again */
    }
    return 0;
}

static int turn(struct side *side, uint32_t events)
{
    int ret = 0;
    if (events & EPOLLERR) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(side->source.fd, SOL_SOCKET, SO_ERROR, &error, &size);
        return broken(side, error ? error : ECONNRESET);
    }
    if (events & (EPOLLOUT | EPOLLHUP) && other(side)->rest_size)
        ret = send_rest(other(side));
    if (!ret && events & (EPOLLIN | EPOLLHUP))
        ret = read_side(side);
    return ret;
}

/* Read what a side sent before it reset the connection. That is still there, as it is for a peer connected directly:
 * a server that refuses a request may answer, and close without having read all of it. 0, or -ECANCELED. */
static int drain(struct side *side)
{
    int ret = 0;
    for (uint64_t before = side->bytes - 1; side->is_broken && !ret && before != side->bytes && !side->is_read;) {
        before = side->bytes;
        ret = read_side(side);
    }
    return ret == -ECANCELED ? ret : 0;
}

/* A side has reset the connection. If it was the client, the server isn't to blame. */
static void reset_by(struct connection *c, int ret)
{
    if (drain(&c->server) < 0 || drain(&c->client) < 0)
        return;
    if (c->client.is_broken && !c->server.is_broken)
        connection_reset(c, NSBOX_NET_NO_REASON, 0);
    else
        connection_reset(c, NSBOX_NET_UPSTREAM, -ret);
}

void on_side(struct source *source, uint32_t events)
{
    struct side *side = (struct side *)(void *)source;
    struct connection *c = side->connection;
    if (c->state == DIALING) { /* the client outside has gone */
        if (events & (EPOLLERR | EPOLLHUP))
            connection_abort(c, ECONNABORTED);
        return;
    }
    if (c->state == ACCEPTING) { /* the server has ended it before the client knew of it */
        if (events & (EPOLLERR | EPOLLHUP))
            connection_fail(c, ECONNREFUSED, NSBOX_NET_FAILED, NSBOX_NET_UPSTREAM);
        return;
    }
    int ret = turn(side, events);
    if (ret == -ECANCELED)
        return;
    if (ret < 0) {
        reset_by(c, ret);
        return;
    }
    if (c->client.is_read && hold_end(c)) {
        connection_close(c, NSBOX_NET_NO_TLS, 0);
        return;
    }
    shut(&c->client);
    shut(&c->server);
    if (c->client.is_shut && c->server.is_shut) {
        connection_close(c, 0, 0);
        return;
    }
    await(&c->client);
    await(&c->server);
}

/* Notice when the client goes. A client that has shut its end may be a socket that is closed by now. Only lo can
 * tell: it answers at once. */
static void watch_client(int fd)
{
    const int on = 1, idle = 60, interval = 15, count = 4;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

void pump_rest(struct connection *c)
{
    if (c->state == RELAYING)
        on_side(&c->client.source, EPOLLIN);
}

void pump_start(struct connection *c, int client)
{
    int on = 1;
    c->state = RELAYING;
    c->client.source.fd = client;
    c->watch = c->name && list.head->tls != NSBOX_NET_TLS_OFF ? WATCH_HELLO : WATCH_OVER;
    c->deadline = now() + HOLD;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(c->server.source.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    watch_client(client);
    c->client.events = c->server.events = EPOLLIN;
    if (loop_add(&c->client.source, EPOLLIN) < 0) {
        connection_reset(c, NSBOX_NET_LIMIT, ENOMEM);
        return;
    }
    loop_change(&c->server.source, EPOLLIN);
}
