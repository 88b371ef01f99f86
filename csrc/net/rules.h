/* rules.h: a policy's list: the names, addresses and ports that are allowed, and the addresses that no name may have.
 * Pure. */
#ifndef NSBOX_NET_RULES_H
#define NSBOX_NET_RULES_H

#include "wire.h"
#include <stddef.h>
#include <stdint.h>

enum { PROTOCOL_TCP = 0, PROTOCOL_UDP = 1 };

enum verdict { VERDICT_NO, VERDICT_YES, VERDICT_DENIED }; /* not listed, listed, denied by an entry with "!" */

struct rules {
    const nsbox_net_rules *head; /* in the blob, which has been checked and stays in memory */
    const nsbox_net_rule *rules;
    const char *names;
    int has_udp; /* an entry for UDP */
};

/* Read a blob of this size. 0, or -EINVAL for a blob that the caller's side would never make. */
int rules_read(struct rules *rules, const void *blob, size_t size);

/* May a name be looked up: does any entry list it, for some port? */
enum verdict rules_name(const struct rules *rules, const char *name);

/* Does an entry list exactly this name, and none deny it? */
int rules_spells(const struct rules *rules, const char *name);

/* May a name be connected to at this port? */
enum verdict rules_name_port(const struct rules *rules, const char *name, uint16_t port, int protocol);

/* May the command connect to this address, which it gave itself, at this port? is_own: it is one of the host's, for
 * which there must be an entry for that address alone. Never to loopback, which has entries of its own. */
enum verdict rules_address(const struct rules *rules, uint32_t address, uint16_t port, int protocol, int is_own);

/* May 127.0.0.1 of the host be connected to at this port? */
enum verdict rules_localhost(const struct rules *rules, uint16_t port);

/* May a listed name have this address, for this port? 0: for some port. Address in network order, of 4 or 16 bytes. */
int rules_may_resolve(const struct rules *rules, const uint8_t *address, size_t size, uint16_t port, int protocol,
                      int is_own);

/* Is it the host's loopback, or does a connection to it lead there? No name may have such an address, whatever is
 * listed. */
int address_is_loopback(const uint8_t *address, size_t size);

/* Does it belong to no host on the Internet (RFC 6890 and the like)? */
int address_is_special(const uint8_t *address, size_t size);

#endif
