/* watch.h: makes sure that the client of a TLS server asks for the server that it has named to the proxy. Pure. */
#ifndef NSBOX_PROXY_WATCH_H
#define NSBOX_PROXY_WATCH_H

#include "net/hello.h"
#include "net/wire.h"
#include <sys/types.h>

/* What is watched: its first hello; what comes before the server has answered that; a second hello, if the server
 * wants one (HelloRetryRequest, RFC 8446, 4.1.4); then nothing more. */
enum watch_state { WATCH_HELLO, WATCH_ANSWER, WATCH_SECOND, WATCH_OVER };

struct watch {
    enum watch_state state;
    uint16_t port;
    uint32_t tls;       /* of the list */
    size_t record_left; /* of the client's record that is being passed on */
    uint8_t answer[43]; /* what the server began with */
    size_t answer_size;
    char sni[HELLO_NAME];
};

/* Returns how many of the client's bytes that are held may be passed on now. *reason: why none ever may be. */
size_t watch_client(struct watch *watch, const char *name, const uint8_t *bytes, size_t size, uint32_t *reason);

void watch_server(struct watch *watch, const uint8_t *bytes, size_t size);

/* Does the client owe a hello? Then it can't go on, even if it sends no more or our patience ends. */
int watch_waits(const struct watch *watch, size_t held);

#endif
