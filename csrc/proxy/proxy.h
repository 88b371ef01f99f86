/* proxy.h: what the parts of the proxy share: accounts, clients, and the loop.
 *
 * nsbox-proxy enforces a network list where nsbox can't control a command's packets. It listens at a port of
 * 127.0.0.1, as an HTTP proxy and as SOCKS5, and the command can connect to nothing else. One thread serves all
 * clients; others look up names. It uses only POSIX: it is for macOS, and is also tested on Linux.
 */
#ifndef NSBOX_PROXY_H
#define NSBOX_PROXY_H

#include "proxy/parsers/http.h"
#include "proxy/parsers/target.h"
#include "proxy/parsers/watch.h"
#include "net/address.h"
#include "net/rules.h"
#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

enum { BUFFER = 65536, SECOND = 1000, MOST_STRANGERS = 64, MOST_CLIENTS = 10240 };

/* A question to the caller, asked once for a sandbox, and its answer. */
struct ask {
    uint64_t id;
    struct destination to;
    enum { ANSWER_PENDING, ANSWER_YES, ANSWER_NO } answer;
    int is_sent;
    int64_t deadline;
    struct ask *next;
};

/* A sandbox: a client that knows its secret belongs to it. */
struct account {
    uint64_t id, secret;
    uint32_t n_clients, n_asks, n_pending;
    uint64_t bytes;
    struct ask *asks;
    struct account *next;
};

/* One side of a connection. What comes from it goes to the other. */
struct side {
    int fd; /* or -1 */
    uint8_t bytes[BUFFER];
    size_t size;
    int is_read; /* to its end */
    int is_shut; /* nothing more is sent to it */
    int error;
    size_t reply;   /* how many of the first bytes are a reply of ours */
    uint64_t count; /* bytes that came from it, and were passed on */
};

/* HEAD: the client hasn't said yet what it wants. ENDING: it gets a reply, and nothing more. */
enum state { HEAD, ASKING, RESOLVING, CONNECTING, RELAYING, ENDING, OVER };
enum dialect { UNKNOWN, HTTP_CONNECT, HTTP_PLAIN, SOCKS_GREETING, SOCKS_SECRET, SOCKS_REQUEST };

struct client {
    struct side client, server; /* server.bytes: replies of ours too */
    enum state state;
    enum dialect dialect;
    uint64_t number; /* of this client, for a thread */
    struct account *account;
    struct destination to;
    struct ask *ask; /* the question whose answer let it through, or will; or NULL */
    union address targets[MOST_TARGETS];
    int tries[MOST_TARGETS]; /* sockets that connect, or -1 */
    int n_targets, n_tries, winner, error;
    int64_t started, deadline, next_try;
    struct watch watch;
    struct body body;
    size_t passable; /* how many of the client's bytes the server may have */
    char *first;     /* what the server gets first; or NULL */
    size_t first_size, first_at;
    enum state polled_in;
    int polled[2]; /* their places in the loop's array: the client; the server or the first of the tries */
    struct client *next;
};

/* main.c */
int64_t now(void); /* milliseconds */
extern struct client *clients;

/* control.c */
extern struct rules list;
extern struct account *accounts;
int control_start(int socket);
void control_listening(uint16_t port);
short control_events(void);      /* of poll(2) */
void control_settle(void);       /* report everything that has happened */
int control_ready(short events); /* 0: the caller has gone */
struct account *account_of(uint64_t id, uint64_t secret);
int tell_ask(const struct account *account, const struct ask *ask);
void tell(const struct client *c, uint32_t what, uint32_t verdict, uint32_t reason, int error);

/* judge.c */
enum verdict judge(const struct destination *to);
uint32_t reason_of_refusal(const struct destination *to, enum verdict verdict); /* why it isn't VERDICT_YES */
int may_reach(const union address *target, uint16_t port, uint32_t *reason);    /* an address of a name */
int may_ask(const struct destination *to);
struct ask *ask_about(struct account *account, const struct destination *to, uint32_t *reason);
void ask_answer(uint64_t id, int is_allowed);
void asks_tick(int64_t time);
void asks_end(struct account *account);
uint32_t revoked(const struct client *c); /* why the list in force ends it; 0: it may go on */

/* own.c */
int is_own_address(const union address *target); /* one of this machine's, or unknown */

/* resolve.c */
int resolve_start(void); /* a descriptor that becomes readable when a name has been looked up; or -errno */
int resolve(uint64_t client, const char *name);
int resolve_next(uint64_t *client, union address targets[MOST_TARGETS], int *n, int *error); /* 0: there is none */

/* client.c */
int client_new(int fd);             /* 0: there is no memory */
void client_read(struct client *c); /* in HEAD: the request may be complete */
void client_refuse(struct client *c, uint32_t reason);
void client_fail(struct client *c, int error);
void client_connected(struct client *c);                         /* the client gets its reply */
void client_end(struct client *c);                               /* both sides are closed at once */
void client_reset(struct client *c, uint32_t reason);            /* both sides get ECONNRESET */
void client_close(struct client *c, uint32_t reason, int error); /* it was relayed */
void client_say(struct client *c, const void *bytes, size_t size);
void clients_judge(void); /* the list has changed */
int clients_tick(int64_t time);

/* connect.c */
void client_begin(struct client *c); /* its destination is known */
void client_proceed(struct client *c);
void client_resolved(struct client *c, const union address *targets, int n, int error);
void client_try(struct client *c);
void client_tried(struct client *c, int n);

/* pump.c */
void pump_start(struct client *c);
short pump_events(const struct client *c, int of_server);
void pump(struct client *c, short client, short server);
int set_nonblocking(int fd);

#endif
