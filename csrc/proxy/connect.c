/* connect.c: leads a client to its server: the destination is judged, looked up and connected to, at the first
 * address that answers. */
#include "proxy.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { HTTPS = 443, STAGGER = 250 /* RFC 8305 */, PATIENCE = 60 * SECOND };

void client_begin(struct client *c)
{
    uint32_t reason;
    enum verdict verdict = judge(&c->to);
    c->started = now();
    if (verdict != VERDICT_YES && (verdict == VERDICT_DENIED || !may_ask(&c->to))) {
        client_refuse(c, reason_of_refusal(&c->to, verdict));
        return;
    }
    if (c->dialect == HTTP_PLAIN && c->to.kind == TO_NAME && c->to.port == HTTPS &&
        list.head->tls != NSBOX_NET_TLS_OFF) {
        client_refuse(c, NSBOX_NET_NO_TLS);
        return;
    }
    if (verdict == VERDICT_YES) {
        client_proceed(c);
        return;
    }
    c->ask = ask_about(c->account, &c->to, &reason);
    if (!c->ask || c->ask->answer == ANSWER_NO)
        client_refuse(c, c->ask ? NSBOX_NET_ASKED : reason);
    else if (c->ask->answer == ANSWER_YES)
        client_proceed(c);
    else
        c->state = ASKING;
}

void client_proceed(struct client *c)
{
    union address *to = c->targets;
    if (c->to.kind == TO_NAME) {
        c->state = RESOLVING;
        if (resolve(c->number, c->to.name) < 0)
            client_fail(c, EAGAIN);
        return;
    }
    to[0] = address_of(c->to.kind == TO_LOCALHOST ? INADDR_LOOPBACK : c->to.address);
    to[1].six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    c->n_targets = c->to.kind == TO_LOCALHOST ? 2 : 1;
    c->state = CONNECTING;
    c->deadline = now() + PATIENCE;
    client_try(c);
}

void client_resolved(struct client *c, const union address *targets, int n, int error)
{
    uint32_t reason = NSBOX_NET_ADDRESS;
    for (int i = 0; i < n; i++)
        if (may_reach(&targets[i], c->to.port, &reason))
            c->targets[c->n_targets++] = targets[i];
    if (!c->n_targets && n) {
        c->targets[0] = targets[0]; /* for the record */
        c->n_targets = 1;
        client_refuse(c, reason);
        return;
    }
    if (!n) {
        client_fail(c, error);
        return;
    }
    c->state = CONNECTING;
    c->deadline = now() + PATIENCE;
    client_try(c);
}

static void win(struct client *c, int n)
{
    c->server.fd = c->tries[n];
    c->tries[n] = -1;
    c->winner = n;
    for (int i = 0; i < c->n_tries; i++)
        if (c->tries[i] >= 0)
            close(c->tries[i]);
    c->n_tries = 0;
    client_connected(c);
}

static int is_trying(const struct client *c)
{
    for (int i = 0; i < c->n_tries; i++)
        if (c->tries[i] >= 0)
            return 1;
    return 0;
}

/* 0: connected; -EINPROGRESS or another -errno. */
static int begin_try(struct client *c, int n)
{
    union address to = c->targets[n];
    address_set_port(&to, c->to.port);
    int fd = socket(to.any.sa_family, SOCK_STREAM, 0);
    c->tries[n] = fd;
    if (fd < 0 || set_nonblocking(fd) < 0)
        return -errno;
    if (connect(fd, &to.any, address_size(&to)) < 0)
        return -errno;
    return is_to_itself(fd) ? -ECONNREFUSED : 0;
}

static void drop_try(struct client *c, int n, int error)
{
    if (c->tries[n] >= 0)
        close(c->tries[n]);
    c->tries[n] = -1;
    if (!c->error || n == 0)
        c->error = error; /* the error of the preferred address */
}

void client_try(struct client *c)
{
    while (c->n_tries < c->n_targets) {
        int n = c->n_tries++, ret = begin_try(c, n);
        if (ret == 0) {
            win(c, n);
            return;
        }
        if (ret == -EINPROGRESS) {
            c->next_try = now() + STAGGER;
            return;
        }
        drop_try(c, n, -ret);
    }
    if (!is_trying(c))
        client_fail(c, c->error);
}

void client_tried(struct client *c, int n)
{
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(c->tries[n], SOL_SOCKET, SO_ERROR, &error, &size) < 0)
        error = errno;
    if (!error && is_to_itself(c->tries[n]))
        error = ECONNREFUSED;
    if (!error) {
        win(c, n);
        return;
    }
    drop_try(c, n, error);
    client_try(c);
}
