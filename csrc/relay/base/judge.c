/* judge.c: the list's verdict on a destination. */
#include "judge.h"
#include "net/verdict.h"

static int is_loopback(uint32_t address)
{
    return address >> 24 == 127;
}

enum verdict judge(const struct destination *to)
{
    if (to->name)
        return rules_name_port(&list, to->name->text, to->port, to->protocol);
    if (is_loopback(to->address))
        return to->address == INADDR_LOOPBACK && to->protocol == PROTOCOL_TCP ? rules_localhost(&list, to->port)
                                                                              : VERDICT_NO;
    return verdict_of_address(&list, to->address, to->port, to->protocol, is_own_address);
}

uint32_t reason_of_refusal(const struct destination *to, enum verdict verdict)
{
    if (verdict == VERDICT_DENIED)
        return NSBOX_NET_DENIED;
    return to->name ? NSBOX_NET_NOT_LISTED : reason_of_address(&list, to->address, to->port, to->protocol);
}

int may_ask(const struct destination *to)
{
    return list.head->flags & NSBOX_NET_ASKS && (to->name || address_may_be_asked(to->address, is_own_address));
}
