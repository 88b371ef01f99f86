/* connection.h: a connection on its way: held as a SYN, connected outside, let in, relayed. */
#ifndef NSBOX_RELAY_CONNECTION_H
#define NSBOX_RELAY_CONNECTION_H

#include "events.h"
#include "hello.h"
#include "relay.h"

enum { HOLD = 30 * SECOND }; /* for which a client may keep back whom it wants */

enum state { RESOLVING, CONNECTING, ACCEPTING, RELAYING, ENDED };

/* One side. What comes from it goes to the other; rest is what that didn't take yet. */
struct side {
    struct source source;
    struct connection *connection;
    uint32_t events; /* what it waits for */
    int is_read;     /* to its end */
    int is_shut;     /* nothing more is sent to it */
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
    struct name *name; /* or NULL: the command named an address */
    struct waiter waiter;
    struct syn syn;
    struct attempt attempts[MOST_TARGETS];
    union target targets[MOST_TARGETS];
    int n_targets, n_attempts, n_failed;
    int winner;     /* of the attempts */
    int is_waiting; /* for its name */
    int64_t started, next_attempt, deadline;
    uint8_t *hello; /* what the client has sent so far, as long as its name isn't known; or NULL */
    size_t hello_size;
    int is_held; /* the client's bytes, for the name in them */
    char sni[HELLO_NAME];
    struct connection *next, **link;
};

/* connect.c */
void connection_end(struct connection *c); /* closes all, without a word */
void connection_fail(struct connection *c, int error, uint32_t verdict, uint32_t reason);
struct connection *connection_find(const struct sandbox *sandbox, const struct syn *syn);
void tell_connect(const struct connection *c, uint32_t verdict, uint32_t reason, int error);
void send_packet(const struct sandbox *sandbox, const uint8_t *packet, size_t size, uint32_t target);
void refuse(const struct sandbox *sandbox, const struct syn *syn, int error);

/* listen.c */
void let_in(struct connection *c);

/* pump.c */
void on_side(struct source *source, uint32_t events);
void pump_start(struct connection *c, int client);
int pump_send(struct side *from, const uint8_t *bytes, size_t size);
void connection_reset(struct connection *c, uint32_t reason, int error); /* both sides hear of it as ECONNRESET */
void connection_close(struct connection *c, uint32_t reason, int error);

/* hold.c: 0: go on. -errno; -ECANCELED: the connection has ended. */
int hold(struct connection *c, const uint8_t *bytes, size_t size);

#endif
