/* client.c: a client of the proxy: its request, by either protocol, and the reply it gets. */
#include "proxy.h"
#include "proxy/parsers/socks.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE = 10 * SECOND, PARTING = 2 * SECOND, TEXT = 1024 };

static uint64_t last;

/* Make room for a client. One that hasn't said whose it is has little time and few places: any process on the
 * machine can connect. */
static void make_room(void)
{
    struct client *oldest = NULL;
    int n = 0;
    for (struct client *c = clients; c; c = c->next)
        if (!c->account && c->state != OVER) {
            oldest = c;
            n++;
        }
    if (n > MOST_STRANGERS)
        client_end(oldest);
}

int client_new(int fd)
{
    struct client *c = calloc(1, sizeof *c);
    if (!c || set_nonblocking(fd) < 0) {
        free(c);
        close(fd);
        return 0;
    }
    c->client.fd = fd;
    c->server.fd = -1;
    for (int i = 0; i < MOST_TARGETS; i++)
        c->tries[i] = -1;
    c->number = ++last;
    c->started = now();
    c->deadline = c->started + PATIENCE;
    c->next = clients;
    clients = c;
    make_room();
    return 1;
}

/* ---- the end */

static void close_side(struct side *side)
{
    if (side->fd >= 0)
        close(side->fd);
    side->fd = -1;
}

void client_end(struct client *c)
{
    close_side(&c->client);
    close_side(&c->server);
    for (int i = 0; i < c->n_tries; i++)
        if (c->tries[i] >= 0)
            close(c->tries[i]);
    c->n_tries = 0;
    if (c->account && c->state != OVER)
        c->account->n_clients--;
    c->account = NULL;
    c->ask = NULL;
    c->state = OVER; /* the loop frees it */
}

void client_reset(struct client *c, uint32_t reason)
{
    const struct linger at_once = {1, 0};
    if (c->client.fd >= 0)
        setsockopt(c->client.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (c->server.fd >= 0)
        setsockopt(c->server.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (c->state == RELAYING)
        tell(c, NSBOX_NET_CLOSE, reason ? NSBOX_NET_REFUSED : NSBOX_NET_ALLOWED, reason, 0);
    client_end(c);
}

void client_close(struct client *c, uint32_t reason, int error)
{
    tell(c, NSBOX_NET_CLOSE, reason ? NSBOX_NET_REFUSED : error ? NSBOX_NET_FAILED : NSBOX_NET_ALLOWED, reason, error);
    client_end(c);
}

/* ---- replies */

void client_say(struct client *c, const void *bytes, size_t size)
{
    if (size > BUFFER - c->server.size)
        return;
    memcpy(c->server.bytes + c->server.size, bytes, size);
    c->server.size += size;
    c->server.reply += size;
}

/* End the connection: the client gets the reply, and nothing else. */
static void part(struct client *c)
{
    close_side(&c->server);
    for (int i = 0; i < c->n_tries; i++)
        if (c->tries[i] >= 0)
            close(c->tries[i]);
    c->n_tries = 0;
    c->state = ENDING;
    c->deadline = now() + PARTING;
}

static void say_status(struct client *c, int status, const char *what, const char *why)
{
    char text[TEXT];
    int n = snprintf(
        text, sizeof text,
        "HTTP/1.1 %d %s\r\n%sContent-Type: text/plain\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s\n", status,
        what, status == 407 ? "Proxy-Authenticate: Basic realm=\"nsbox\"\r\n" : "", strlen(why) + 1, why);
    client_say(c, text, n > 0 && (size_t)n < sizeof text ? (size_t)n : 0);
}

static void say_socks(struct client *c, enum socks_reply reply)
{
    const uint8_t bytes[] = {5, (uint8_t)reply, 0, 1, 0, 0, 0, 0, 0, 0};
    client_say(c, bytes, sizeof bytes);
}

static int is_socks(const struct client *c)
{
    return c->dialect >= SOCKS_GREETING;
}

static void refuse_request(struct client *c, int status)
{
    static const struct {
        int status;
        const char *what, *why;
    } known[] = {{400, "Bad Request", "nsbox: the request is mangled, or can be read in two ways"},
                 {407, "Proxy Authentication Required", "nsbox: the proxy is for the sandbox whose secret it has"},
                 {431, "Request Header Fields Too Large", "nsbox: the request's head is too large"},
                 {501, "Not Implemented", "nsbox: https by CONNECT, and no coding but chunked"},
                 {505, "HTTP Version Not Supported", "nsbox: HTTP/1.0 and HTTP/1.1 alone"}};
    size_t i = 0;
    while (i + 1 < sizeof known / sizeof *known && known[i].status != status)
        i++;
    say_status(c, known[i].status, known[i].what, known[i].why);
    part(c);
}

void client_refuse(struct client *c, uint32_t reason)
{
    char why[512];
    int is_limit = reason == NSBOX_NET_LIMIT;
    snprintf(why, sizeof why, "nsbox: %s:%u %s",
             c->to.kind == TO_NAME        ? c->to.name
             : c->to.kind == TO_LOCALHOST ? "localhost"
                                          : "this address",
             c->to.port,
             is_limit ? "is more than the list's limit of connections or bytes"
             : reason == NSBOX_NET_ADDRESS || reason == NSBOX_NET_OWN_ADDRESS
                 ? "leads to an address that no name may have"
             : reason == NSBOX_NET_NO_TLS ? "takes TLS"
             : reason == NSBOX_NET_ASKED  ? "was asked about, and refused"
                                          : "isn't in this sandbox's network list");
    tell(c, NSBOX_NET_CONNECT, NSBOX_NET_REFUSED, reason, is_limit ? 0 : ECONNREFUSED);
    if (is_socks(c))
        say_socks(c, is_limit ? SOCKS_FAILED : SOCKS_REFUSED);
    else
        say_status(c, is_limit ? 503 : 403, is_limit ? "Service Unavailable" : "Forbidden", why);
    part(c);
}

static enum socks_reply socks_of(int error)
{
    switch (error) {
    case ECONNREFUSED:
        return SOCKS_PORT;
    case ENETUNREACH:
        return SOCKS_NET;
    case ETIMEDOUT:
        return SOCKS_LATE;
    case ENOENT:
    case EAGAIN:
    case EHOSTUNREACH:
        return SOCKS_HOST;
    default:
        return SOCKS_FAILED;
    }
}

/* Tell the client why it failed. ENOENT, EAGAIN: the name doesn't exist, or that can't be found out now. */
void client_fail(struct client *c, int error)
{
    char why[512];
    int is_name = error == ENOENT || error == EAGAIN, is_late = error == ETIMEDOUT;
    tell(c, is_name ? NSBOX_NET_DNS : NSBOX_NET_CONNECT, NSBOX_NET_FAILED, NSBOX_NET_UPSTREAM, is_name ? 0 : error);
    snprintf(why, sizeof why, "nsbox: %s:%u: %s", c->to.kind == TO_NAME ? c->to.name : "this address", c->to.port,
             error == ENOENT   ? "no such name"
             : error == EAGAIN ? "the name can't be looked up now"
                               : strerror(error));
    if (is_socks(c))
        say_socks(c, socks_of(error));
    else
        say_status(c, is_late ? 504 : 502, is_late ? "Gateway Timeout" : "Bad Gateway", why);
    part(c);
}

void client_connected(struct client *c)
{
    static const char established[] = "HTTP/1.1 200 Connection established\r\n\r\n";
    tell(c, NSBOX_NET_CONNECT, NSBOX_NET_ALLOWED, c->ask ? NSBOX_NET_ASKED : 0, 0);
    if (is_socks(c))
        say_socks(c, SOCKS_DONE);
    else if (c->dialect == HTTP_CONNECT)
        client_say(c, established, sizeof established - 1);
    c->state = RELAYING;
    pump_start(c);
}

/* ---- the request */

static void drop(struct client *c, size_t size)
{
    c->client.size -= size;
    memmove(c->client.bytes, c->client.bytes + size, c->client.size);
}

static int enter(struct client *c, uint64_t user, uint64_t secret)
{
    c->account = account_of(user, secret);
    if (c->account)
        c->account->n_clients++;
    return !!c->account;
}

/* Begin with a client that belongs to a sandbox, and has said where it wants to go. */
static void arrive(struct client *c)
{
    int is_spent = list.head->bytes && c->account->bytes >= list.head->bytes;
    if (is_spent || c->account->n_clients > list.head->connections)
        client_refuse(c, NSBOX_NET_LIMIT);
    else
        client_begin(c);
}

static void read_http(struct client *c)
{
    struct request request;
    const char *bytes = (const char *)c->client.bytes;
    int ret = http_read(&request, bytes, c->client.size);
    if (ret == 0)
        return;
    if (ret > 0 && !enter(c, request.user, request.secret))
        ret = -407;
    if (ret < 0) {
        refuse_request(c, -ret);
        return;
    }
    c->to = request.to;
    c->dialect = request.is_connect ? HTTP_CONNECT : HTTP_PLAIN;
    if (!request.is_connect) {
        const size_t room = HTTP_HEAD_MOST + TEXT;
        c->first = malloc(room);
        c->first_size = c->first ? http_rewrite(&request, bytes, c->first, room) : 0;
        c->body = request.body;
        if (!c->first_size) {
            refuse_request(c, 431);
            return;
        }
    }
    drop(c, request.size);
    arrive(c);
}

/* Read one message; 0: it isn't complete yet. */
static int read_socks(struct client *c)
{
    uint64_t found[2];
    int is_one;
    uint8_t *bytes = c->client.bytes;
    ssize_t n = c->dialect == SOCKS_GREETING ? socks_greeting(bytes, c->client.size, &is_one)
                : c->dialect == SOCKS_SECRET ? socks_secret(bytes, c->client.size, found, &is_one)
                                             : socks_request(bytes, c->client.size, &c->to);
    if (n == 0)
        return 0;
    if (n > 0)
        drop(c, (size_t)n);
    if (c->dialect == SOCKS_REQUEST) {
        if (n > 0) {
            arrive(c);
            return 0;
        }
        say_socks(c, (enum socks_reply) - n);
    } else if (c->dialect == SOCKS_GREETING && n > 0) {
        client_say(c, is_one ? "\5\2" : "\5\377", 2);
        c->dialect = SOCKS_SECRET;
        if (is_one)
            return 1;
    } else if (n > 0) {
        is_one = is_one && enter(c, found[0], found[1]);
        client_say(c, is_one ? "\1\0" : "\1\1", 2);
        c->dialect = SOCKS_REQUEST;
        if (is_one)
            return 1;
    }
    part(c);
    return 0;
}

void client_read(struct client *c)
{
    if (c->dialect == UNKNOWN && c->client.size)
        c->dialect = c->client.bytes[0] == 5 ? SOCKS_GREETING : HTTP_CONNECT;
    if (c->dialect == UNKNOWN)
        return;
    if (!is_socks(c))
        read_http(c);
    else
        while (read_socks(c))
            continue;
}
