/* connection.h: a connection on its way: held as a SYN, connected outside, let in, relayed. */
#ifndef NSBOX_RELAY_CONNECTION_H
#define NSBOX_RELAY_CONNECTION_H

#include "net/hello.h"
#include "relay/base/events.h"
#include "relay/base/judge.h"
#include "relay/base/relay.h"

enum { HOLD = 30 * SECOND }; /* the time a client has to say which server it wants */

/* DIALING: to a server inside, for a client of a published port. */
enum state { ASKING, RESOLVING, CONNECTING, ACCEPTING, DIALING, RELAYING, ENDED };

/* How far the client of a TLS server is watched: its first hello; what comes before the server has answered that; a
 * second hello, if the server wants one (HelloRetryRequest, RFC 8446, 4.1.4); then nothing more. */
enum watch { WATCH_HELLO, WATCH_ANSWER, WATCH_SECOND, WATCH_OVER };

enum { ANSWER_HEAD = 43 }; /* bytes of a server's first message: record, message, version and random */

/* One side of a connection. What comes from it goes to the other. rest: what the other hasn't accepted yet. */
struct side {
    struct source source;
    struct connection *connection;
    uint32_t events; /* what it waits for */
    int is_out;      /* removed from the loop's set for now */
    int is_read;     /* to its end */
    int is_shut;     /* nothing more is sent to it */
    int is_bulk;     /* much came from it the last time */
    int is_broken;   /* it has reset the connection */
    uint8_t *rest;
    size_t rest_at, rest_size;
    uint64_t bytes; /* that came from it */
};

/* One try to connect, to the address of this number. */
struct attempt {
    struct source source;
    struct connection *connection;
    int error;
};

struct connection {
    struct side client, server;
    enum state state;
    struct sandbox *sandbox;
    struct name *name;    /* or NULL: the command named an address */
    uint64_t publication; /* that its client came by; or 0 */
    struct ask *ask;      /* whose answer let it through, or will; or NULL: an entry did */
    struct waiter waiter;
    struct syn syn;
    struct attempt attempts[MOST_TARGETS];
    union address targets[MOST_TARGETS];
    int n_targets, n_attempts, n_failed;
    int winner;     /* of the attempts */
    int is_waiting; /* for its name */
    int64_t started, next_attempt, deadline;
    struct listener *listener; /* through which the client is to come; or NULL */
    int is_told;               /* how it ended has been reported */

    enum watch watch;
    uint8_t *hello; /* what the client sent that isn't passed on yet; or NULL */
    size_t hello_size;
    uint8_t record[5]; /* the head of the client's record that is being passed */
    size_t record_size, record_left;
    uint8_t answer[ANSWER_HEAD]; /* what the server began with */
    size_t answer_size;
    char sni[HELLO_NAME];
    struct connection *next, **link;
};

/* connect.c */
void connection_end(struct connection *c); /* closes everything, without a report */
void connection_fail(struct connection *c, int error, uint32_t verdict, uint32_t reason);
struct connection *connection_new(struct sandbox *sandbox, const struct syn *syn); /* NULL: no memory */
void connection_abort(struct connection *c, int error); /* before anything was relayed; both sides are reset */
void connection_begin(struct sandbox *sandbox, const struct syn *syn, struct name *name, struct ask *ask);
void connection_proceed(struct connection *c); /* it may connect */
void connections_answered(const struct ask *ask);
struct connection *connection_find(const struct sandbox *sandbox, const struct syn *syn);
void tell_connect(const struct connection *c, uint32_t verdict, uint32_t reason, int error);

/* refusal.c: answer a SYN so that connect(2) fails with this errno, or one that says the same. */
void syn_refuse(const struct sandbox *sandbox, const struct syn *syn, int error);
int error_of_refusal(const struct syn *syn, const struct name *name);

/* 0: connected, as to a server on this machine; -EINPROGRESS, or another -errno. */
int connect_now(int fd, const struct sockaddr *to, socklen_t size);

/* Bounds what a peer that never reads costs the host, and notices a peer that has gone. */
void set_patience(int fd);

/* publish.c */
void publication_fail(struct connection *c, int error);

/* listen.c */
void let_in(struct connection *c);

/* pump.c */
void on_side(struct source *source, uint32_t events);
void pump_rest(struct connection *c); /* what the client sent before it ended */
void pump_start(struct connection *c, int client);
int pump_send(struct side *from, const uint8_t *bytes, size_t size);
void connection_reset(struct connection *c, uint32_t reason, int error); /* both sides get ECONNRESET */
void connection_close(struct connection *c, uint32_t reason, int error);
void tell_close(struct connection *c, uint32_t reason, int error);

/* hold.c: 0: go on. -errno; -ECANCELED: the connection has ended. */
int hold(struct connection *c, const uint8_t *bytes, size_t size); /* bytes from the client, while it is watched */
void hold_answer(struct connection *c, const uint8_t *bytes, size_t size); /* bytes from the server */
int hold_end(struct connection *c);     /* the client sends nothing more; 1: it may not have what it wants */
int is_hold_over(struct connection *c); /* its time to say which server it wants is over */

#endif
