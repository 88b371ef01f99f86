/* target.h: where a client of the proxy wants to go, as the client spells it. Pure. */
#ifndef NSBOX_PROXY_TARGET_H
#define NSBOX_PROXY_TARGET_H

#include "net/hello.h"
#include <stddef.h>
#include <stdint.h>

enum kind {
    TO_NAME,
    TO_ADDRESS,   /* IPv4, by number */
    TO_LOCALHOST, /* this machine's 127.0.0.1 */
    TO_OTHER      /* an address that no list can name: IPv6 */
};

struct destination {
    enum kind kind;
    char name[HELLO_NAME]; /* TO_NAME: lower case, without a dot at its end; of letters, digits, "-", "_" and "." */
    uint32_t address;      /* TO_ADDRESS: in host order */
    uint16_t port;
};

/* Read a host. 0; or -EINVAL: it is no host, or readers understand it differently (127.1, 0x7f000001). */
int target_host(struct destination *to, const char *text, size_t size);

/* Read HOST, or HOST:PORT. no_port: the port for HOST alone; 0: there has to be one. Returns 0 or -EINVAL. */
int target_authority(struct destination *to, const char *text, size_t size, uint16_t no_port);

int target_is_same(const struct destination *a, const struct destination *b);

/* Reads an address of four bytes, as SOCKS sends it. */
void target_four(struct destination *to, const uint8_t bytes[4]);

#endif
