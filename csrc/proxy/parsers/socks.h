/* socks.h: what a client of SOCKS5 says (RFC 1928, RFC 1929). Pure. */
#ifndef NSBOX_PROXY_SOCKS_H
#define NSBOX_PROXY_SOCKS_H

#include "target.h"
#include <sys/types.h>

enum socks_reply {
    SOCKS_DONE = 0,
    SOCKS_FAILED = 1,
    SOCKS_REFUSED = 2,
    SOCKS_NET = 3,
    SOCKS_HOST = 4,
    SOCKS_PORT = 5,
    SOCKS_LATE = 6,
    SOCKS_COMMAND = 7,
    SOCKS_ADDRESS = 8
};

/* Each reads one message, and returns its size; 0: it isn't complete yet; below 0: it is no such message. */
ssize_t socks_greeting(const uint8_t *bytes, size_t size, int *can_authenticate);
ssize_t socks_secret(const uint8_t *bytes, size_t size, uint64_t found[2], int *is_one);

/* Below 0: minus the socks_reply. */
ssize_t socks_request(const uint8_t *bytes, size_t size, struct destination *to);

#endif
