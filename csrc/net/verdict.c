/* verdict.c: applies a list's entries, and knows what no entry can allow. */
#include "verdict.h"
#include <string.h>

enum { LOOPBACK = 127 };

int address_is_never(uint32_t address)
{
    const int shift = 32 - INVENTED_NET_BITS;
    return address >> 24 == LOOPBACK || address >> shift == (uint32_t)INVENTED >> shift;
}

static int is_host(uint32_t address, own_address *is_own)
{
    const union address target = address_of(address);
    return is_own(&target);
}

enum verdict verdict_of_address(const struct rules *list, uint32_t address, uint16_t port, int protocol,
                                own_address *is_own)
{
    if (address_is_never(address))
        return VERDICT_NO;
    enum verdict listed = rules_address(list, address, port, protocol, 1);
    if (listed != VERDICT_NO)
        return listed;
    listed = rules_address(list, address, port, protocol, 0);
    return listed == VERDICT_YES && is_host(address, is_own) ? VERDICT_NO : listed;
}

uint32_t reason_of_address(const struct rules *list, uint32_t address, uint16_t port, int protocol)
{
    if (address_is_never(address))
        return NSBOX_NET_NOT_LISTED;
    return rules_address(list, address, port, protocol, 0) == VERDICT_YES ? NSBOX_NET_OWN_ADDRESS
                                                                          : NSBOX_NET_NOT_LISTED;
}

int address_may_be_asked(uint32_t address, own_address *is_own)
{
    uint8_t bytes[4];
    const uint32_t in_order = htonl(address);
    memcpy(bytes, &in_order, sizeof bytes);
    return !address_is_never(address) && !address_is_special(bytes, sizeof bytes) && !is_host(address, is_own);
}

int may_lead_to(const struct rules *list, const union address *target, uint16_t port, int protocol, int is_own,
                uint32_t *reason)
{
    int is_six = target->any.sa_family == AF_INET6;
    const uint8_t *bytes =
        is_six ? target->six.sin6_addr.s6_addr : (const uint8_t *)(const void *)&target->four.sin_addr;
    if (rules_may_resolve(list, bytes, is_six ? 16 : 4, port, protocol, is_own))
        return 1;
    *reason = is_own ? NSBOX_NET_OWN_ADDRESS : NSBOX_NET_ADDRESS;
    return 0;
}
