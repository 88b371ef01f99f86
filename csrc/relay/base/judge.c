/* judge.c: what the list says of a destination. */
#include "judge.h"
#include <string.h>

static int is_loopback(uint32_t address)
{
    return address >> 24 == 127;
}

/* 198.18.0.0/15: nobody's that isn't a name's. */
static int is_invented(uint32_t address)
{
    return address >> 17 == INVENTED >> 17;
}

static int is_own(uint32_t address)
{
    const union target target = {.four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)}};
    return is_own_address(&target);
}

enum verdict judge(const struct destination *to)
{
    if (to->name)
        return rules_name_port(&list, to->name->text, to->port, to->protocol);
    if (is_loopback(to->address))
        return to->address == INADDR_LOOPBACK && to->protocol == PROTOCOL_TCP ? rules_localhost(&list, to->port)
                                                                              : VERDICT_NO;
    if (is_invented(to->address))
        return VERDICT_NO;
    enum verdict listed = rules_address(&list, to->address, to->port, to->protocol, 1);
    if (listed != VERDICT_NO)
        return listed;
    listed = rules_address(&list, to->address, to->port, to->protocol, 0);
    return listed == VERDICT_YES && is_own(to->address) ? VERDICT_NO : listed;
}

uint32_t reason_of_refusal(const struct destination *to, enum verdict verdict)
{
    if (verdict == VERDICT_DENIED)
        return NSBOX_NET_DENIED;
    if (to->name || is_loopback(to->address) || is_invented(to->address))
        return NSBOX_NET_NOT_LISTED;
    return rules_address(&list, to->address, to->port, to->protocol, 0) == VERDICT_YES ? NSBOX_NET_OWN_ADDRESS
                                                                                       : NSBOX_NET_NOT_LISTED;
}

int may_ask(const struct destination *to)
{
    if (!(list.head->flags & NSBOX_NET_ASKS))
        return 0;
    if (to->name)
        return 1;
    uint8_t bytes[4];
    const uint32_t address = htonl(to->address);
    memcpy(bytes, &address, sizeof bytes);
    return !is_invented(to->address) && !address_is_special(bytes, sizeof bytes) && !is_own(to->address);
}
