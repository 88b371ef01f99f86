/* verdict.h: what a list says of an address, by what the address is to the host. */
#ifndef NSBOX_NET_VERDICT_H
#define NSBOX_NET_VERDICT_H

#include "address.h"
#include "rules.h"

/* Is it one of the host's own, or can't that be told? Each program finds it out as its system lets it. */
typedef int own_address(const union address *address);

/* Is it in 127.0.0.0/8, or in 198.18.0.0/15, where there is nothing except the addresses that stand for names?
 * Entries for addresses don't lead there. */
int address_is_never(uint32_t address);

/* May a command connect to an address that it names itself? One of the host's own has to be listed as that one address. */
enum verdict verdict_of_address(const struct rules *list, uint32_t address, uint16_t port, int protocol,
                                own_address *is_own);

/* Why the list doesn't let it, where no entry denies it. */
uint32_t reason_of_address(const struct rules *list, uint32_t address, uint16_t port, int protocol);

/* May the caller be asked about it? Never about one of the host's, or one that belongs to no host on the Internet. */
int address_may_be_asked(uint32_t address, own_address *is_own);

/* May a listed name lead to this address? Else *reason says why not. */
int may_lead_to(const struct rules *list, const union address *target, uint16_t port, int protocol, int is_own,
                uint32_t *reason);

#endif
