/* verdict.h: a list's verdict on an address, depending on what the address is to the host. */
#ifndef NSBOX_NET_VERDICT_H
#define NSBOX_NET_VERDICT_H

#include "address.h"
#include "rules.h"

/* Is it one of the host's own, or unknown? Each program finds that out as its system allows. */
typedef int own_address(const union address *address);

/* Is it in 127.0.0.0/8, or in 198.18.0.0/15, where all addresses stand for names? Entries for addresses don't lead
 * there. */
int address_is_never(uint32_t address);

/* May a command connect to an address that it gave itself? One of the host's own must be listed as that one address. */
enum verdict verdict_of_address(const struct rules *list, uint32_t address, uint16_t port, int protocol,
                                own_address *is_own);

/* Returns why the list doesn't allow it, if no entry denies it. */
uint32_t reason_of_address(const struct rules *list, uint32_t address, uint16_t port, int protocol);

/* May the caller be asked about it? Never about one of the host's, or one that belongs to no host on the Internet. */
int address_may_be_asked(uint32_t address, own_address *is_own);

/* May a listed name lead to this address? If not, *reason says why. */
int may_lead_to(const struct rules *list, const union address *target, uint16_t port, int protocol, int is_own,
                uint32_t *reason);

#endif
