/* judge.c: what the list says about a destination. If it is silent, the caller is asked, once for each sandbox. */
#include "proxy.h"
#include <stdlib.h>
#include <string.h>

enum { PATIENCE = 120 * SECOND, MOST_PENDING = 64, MOST_ASKS = 4096, INVENTED = 0xc6120000, LOOPBACK = 127 };

static uint64_t last_id;

static int is_own(uint32_t address)
{
    const union address target = {.four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)}};
    return is_own_address(&target);
}

/* 127.0.0.0/8; and 198.18.0.0/15, which has no owner. */
static int is_never(uint32_t address)
{
    return address >> 24 == LOOPBACK || address >> 17 == INVENTED >> 17;
}

enum verdict judge(const struct destination *to)
{
    if (to->kind == TO_NAME)
        return rules_name_port(&list, to->name, to->port, PROTOCOL_TCP);
    if (to->kind == TO_LOCALHOST)
        return rules_localhost(&list, to->port);
    if (to->kind == TO_OTHER || is_never(to->address))
        return VERDICT_NO;
    enum verdict listed = rules_address(&list, to->address, to->port, PROTOCOL_TCP, 1);
    if (listed != VERDICT_NO)
        return listed;
    listed = rules_address(&list, to->address, to->port, PROTOCOL_TCP, 0);
    return listed == VERDICT_YES && is_own(to->address) ? VERDICT_NO : listed;
}

uint32_t reason_of_refusal(const struct destination *to, enum verdict verdict)
{
    if (verdict == VERDICT_DENIED)
        return NSBOX_NET_DENIED;
    if (to->kind == TO_OTHER)
        return NSBOX_NET_ADDRESS;
    if (to->kind != TO_ADDRESS || is_never(to->address))
        return NSBOX_NET_NOT_LISTED;
    return rules_address(&list, to->address, to->port, PROTOCOL_TCP, 0) == VERDICT_YES ? NSBOX_NET_OWN_ADDRESS
                                                                                       : NSBOX_NET_NOT_LISTED;
}

int may_reach(const union address *target, uint16_t port, uint32_t *reason)
{
    int is_six = target->any.sa_family == AF_INET6, own = is_own_address(target);
    const uint8_t *bytes =
        is_six ? target->six.sin6_addr.s6_addr : (const uint8_t *)(const void *)&target->four.sin_addr;
    if (rules_may_resolve(&list, bytes, is_six ? 16 : 4, port, PROTOCOL_TCP, own))
        return 1;
    *reason = own ? NSBOX_NET_OWN_ADDRESS : NSBOX_NET_ADDRESS;
    return 0;
}

int may_ask(const struct destination *to)
{
    uint8_t bytes[4];
    const uint32_t address = htonl(to->address);
    if (!(list.head->flags & NSBOX_NET_ASKS) || to->kind == TO_LOCALHOST || to->kind == TO_OTHER)
        return 0;
    memcpy(bytes, &address, sizeof bytes);
    return to->kind == TO_NAME ||
           (!is_never(to->address) && !address_is_special(bytes, sizeof bytes) && !is_own(to->address));
}

struct ask *ask_about(struct account *account, const struct destination *to, uint32_t *reason)
{
    struct ask *ask = account->asks;
    while (ask && !target_is_same(&ask->to, to))
        ask = ask->next;
    *reason = NSBOX_NET_LIMIT;
    if (ask || account->n_pending == MOST_PENDING || account->n_asks == MOST_ASKS || !(ask = calloc(1, sizeof *ask)))
        return ask;
    *ask = (struct ask){.id = ++last_id, .to = *to, .deadline = now() + PATIENCE, .next = account->asks};
    account->asks = ask;
    account->n_asks++;
    account->n_pending++;
    ask->is_sent = tell_ask(account, ask);
    return ask;
}

static void settle(struct account *account, struct ask *ask, int is_allowed)
{
    ask->answer = is_allowed ? ANSWER_YES : ANSWER_NO;
    account->n_pending--;
    for (struct client *c = clients; c; c = c->next) {
        if (c->state != ASKING || c->ask != ask)
            continue;
        if (is_allowed)
            client_proceed(c);
        else
            client_refuse(c, NSBOX_NET_ASKED);
    }
}

void ask_answer(uint64_t id, int is_allowed)
{
    for (struct account *account = accounts; account; account = account->next)
        for (struct ask *ask = account->asks; ask; ask = ask->next)
            if (ask->id == id && ask->answer == ANSWER_PENDING)
                settle(account, ask, is_allowed);
}

void asks_tick(int64_t time)
{
    for (struct account *account = accounts; account; account = account->next)
        for (struct ask *ask = account->n_pending ? account->asks : NULL; ask; ask = ask->next) {
            if (ask->answer != ANSWER_PENDING)
                continue;
            if (ask->deadline <= time)
                settle(account, ask, 0);
            else if (!ask->is_sent)
                ask->is_sent = tell_ask(account, ask);
        }
}

void asks_end(struct account *account)
{
    for (struct ask *ask = account->asks, *next; ask; ask = next) {
        next = ask->next;
        free(ask);
    }
    account->asks = NULL;
}

uint32_t revoked(const struct client *c)
{
    uint32_t reason;
    enum verdict verdict = judge(&c->to);
    if (verdict == VERDICT_DENIED || (verdict == VERDICT_NO && !(c->ask && may_ask(&c->to))))
        return reason_of_refusal(&c->to, verdict);
    for (int i = 0; c->to.kind == TO_NAME && c->state >= CONNECTING && i < c->n_targets; i++)
        if ((c->state == CONNECTING || i == c->winner) && !may_reach(&c->targets[i], c->to.port, &reason))
            return reason;
    return 0;
}
