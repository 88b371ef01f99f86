/* pump.c: moves bytes from a client to its server, once it is known that they are meant for it, and back. */
#include "proxy.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOLD = 30 * SECOND /* the time a client has to say which server it wants */, PARTING = 2 * SECOND };

int set_nonblocking(int fd)
{
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* only TCP has this */
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
        return -errno;
    return 0;
}

/* End a connection whose client's hello isn't as it must be. */
static void abort_handshake(struct client *c, uint32_t reason)
{
    uint8_t alert[8];
    if (reason == NSBOX_NET_NO_TLS) {
        client_reset(c, reason);
        return;
    }
    tell(c, NSBOX_NET_CLOSE, NSBOX_NET_REFUSED, reason, 0);
    c->server.size = c->server.reply = 0;
    client_say(c, alert, hello_alert(alert));
    close(c->server.fd);
    c->server.fd = -1;
    c->state = ENDING;
    c->deadline = now() + PARTING;
}

/* Find out how many of the client's bytes the server may have. */
static void judge_bytes(struct client *c)
{
    size_t held = c->client.size - c->passable;
    const uint8_t *bytes = c->client.bytes + c->passable;
    uint32_t reason = 0;
    if (c->dialect == HTTP_PLAIN) {
        ssize_t n = body_take(&c->body, (const char *)bytes, held);
        if (n < 0) {
            client_reset(c, 0);
            return;
        }
        c->passable += (size_t)n;
        if (body_is_over(&c->body))
            c->client.size = c->passable; /* one request per connection: what follows it is dropped */
        return;
    }
    c->passable += watch_client(&c->watch, c->to.name, bytes, held, &reason);
    if (reason)
        abort_handshake(c, reason);
    else if (c->client.is_read && watch_waits(&c->watch, c->client.size - c->passable))
        client_reset(c, NSBOX_NET_NO_TLS);
}

void pump_start(struct client *c)
{
    c->watch = (struct watch){.port = c->to.port, .tls = list.head->tls};
    if (c->dialect == HTTP_PLAIN || c->to.kind != TO_NAME || list.head->tls == NSBOX_NET_TLS_OFF)
        c->watch.state = WATCH_OVER;
    c->deadline = now() + HOLD;
    if (c->client.size)
        judge_bytes(c);
}

short pump_events(const struct client *c, int of_server)
{
    const struct side *client = &c->client, *server = &c->server;
    short events = 0;
    if (of_server) {
        if (server->error)
            return 0;
        if (!server->is_read && server->size < BUFFER)
            events |= POLLIN;
        return (short)(events | (c->first || c->passable ? POLLOUT : 0));
    }
    int wants = c->state == HEAD || c->state == ENDING || c->state == RELAYING;
    if (wants && !client->is_read && client->size < BUFFER)
        events |= POLLIN;
    return (short)(events | (server->size ? POLLOUT : 0));
}

static int is_passing(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static void receive(struct side *side)
{
    if (side->is_read || side->size == BUFFER)
        return;
    ssize_t n = recv(side->fd, side->bytes + side->size, BUFFER - side->size, 0);
    if (n > 0)
        side->size += (size_t)n;
    else if (n == 0)
        side->is_read = 1;
    else if (!is_passing(errno))
        side->error = errno;
}

/* Send up to `size` of what came from one side to the other. */
static void deliver(struct side *from, struct side *to, size_t size)
{
    ssize_t n = send(to->fd, from->bytes, size, 0);
    if (n < 0 && !is_passing(errno))
        to->error = errno;
    if (n <= 0)
        return;
    size_t reply = from->reply < (size_t)n ? from->reply : (size_t)n;
    from->reply -= reply;
    from->size -= (size_t)n;
    from->count += (size_t)n - reply;
    memmove(from->bytes, from->bytes + n, from->size);
}

static void deliver_first(struct client *c)
{
    ssize_t n = send(c->server.fd, c->first + c->first_at, c->first_size - c->first_at, 0);
    if (n < 0 && !is_passing(errno))
        c->server.error = errno;
    if (n <= 0)
        return;
    c->first_at += (size_t)n;
    c->client.count += (size_t)n;
    if (c->first_at < c->first_size)
        return;
    free(c->first);
    c->first = NULL;
}

static int is_over_limit(struct client *c, uint64_t before)
{
    c->account->bytes += c->client.count + c->server.count - before;
    return list.head->bytes && c->account->bytes > list.head->bytes;
}

static void shut(struct side *side)
{
    if (!side->is_shut && side->fd >= 0)
        shutdown(side->fd, SHUT_WR);
    side->is_shut = 1;
}

/* One request per connection: further bytes from the client must not cut off the answer on its way to it. */
static void answered(struct client *c)
{
    tell(c, NSBOX_NET_CLOSE, NSBOX_NET_ALLOWED, 0, 0);
    close(c->server.fd);
    c->server.fd = -1;
    c->state = ENDING;
    c->deadline = now() + PARTING;
}

static void finish(struct client *c)
{
    if (c->client.error ||
        (c->server.error && !c->server.size)) { /* what the server said before belongs to the client */
        client_reset(c, 0);
        return;
    }
    if (c->client.is_read && !c->passable && !c->first)
        shut(&c->server);
    if (c->server.is_read && !c->server.size)
        shut(&c->client);
    if (c->client.is_shut && c->dialect == HTTP_PLAIN)
        answered(c);
    else if (c->client.is_shut && c->server.is_shut)
        client_close(c, 0, 0);
}

static void relay(struct client *c, short client, short server)
{
    uint64_t before = c->client.count + c->server.count;
    if (client & (POLLIN | POLLHUP | POLLERR)) {
        receive(&c->client);
        judge_bytes(c);
    }
    if (c->state != RELAYING)
        return;
    if (server & (POLLIN | POLLHUP | POLLERR)) {
        size_t had = c->server.size;
        receive(&c->server);
        if (c->server.size > had)
            watch_server(&c->watch, c->server.bytes + had, c->server.size - had);
        judge_bytes(c); /* what was held may go now */
    }
    if (c->state != RELAYING)
        return;
    if (c->first)
        deliver_first(c);
    if (!c->first && c->passable && !c->server.is_shut && !c->server.error) {
        size_t had = c->client.size;
        deliver(&c->client, &c->server, c->passable);
        c->passable -= had - c->client.size;
    }
    if (c->server.size && !c->client.error)
        deliver(&c->server, &c->client, c->server.size);
    if (is_over_limit(c, before))
        client_reset(c, NSBOX_NET_LIMIT);
    else
        finish(c);
}

/* Send our reply, and then nothing. What still comes is read and dropped, so that the reply isn't lost. */
static void end_slowly(struct client *c, short events)
{
    if (c->server.size)
        deliver(&c->server, &c->client, c->server.size);
    c->client.size = 0;
    if (events & (POLLIN | POLLHUP | POLLERR))
        receive(&c->client);
    if (!c->server.size)
        shut(&c->client);
    if (c->client.error || c->client.is_read)
        client_end(c);
}

void pump(struct client *c, short client, short server)
{
    switch (c->state) {
    case HEAD:
        if (c->server.size)
            deliver(&c->server, &c->client, c->server.size);
        if (client & (POLLIN | POLLHUP | POLLERR)) {
            receive(&c->client);
            client_read(c);
        }
        if (c->state == HEAD && (c->client.error || c->client.is_read || c->client.size == BUFFER))
            client_end(c);
        break;
    case RELAYING:
        relay(c, client, server);
        break;
    case ENDING:
        end_slowly(c, client);
        break;
    default:
        if (client & (POLLHUP | POLLERR))
            client_end(c);
    }
}
