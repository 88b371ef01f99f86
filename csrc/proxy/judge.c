/* judge.c: the verdict on a destination: the list's or, if it is silent, the caller's, who is asked once for a
 * sandbox. */
#include "proxy.h"
#include "net/verdict.h"
#include <stdlib.h>

enum { PATIENCE = 120 * SECOND, MOST_PENDING = 64, MOST_ASKS = 4096 };

static uint64_t last_id;

enum verdict judge(const struct destination *to)
{
    if (to->kind == TO_NAME)
        return rules_name_port(&list, to->name, to->port, PROTOCOL_TCP);
    if (to->kind == TO_LOCALHOST)
        return rules_localhost(&list, to->port);
    return to->kind == TO_OTHER ? VERDICT_NO
                                : verdict_of_address(&list, to->address, to->port, PROTOCOL_TCP, is_own_address);
}

uint32_t reason_of_refusal(const struct destination *to, enum verdict verdict)
{
    if (verdict == VERDICT_DENIED)
        return NSBOX_NET_DENIED;
    if (to->kind == TO_OTHER)
        return NSBOX_NET_ADDRESS;
    return to->kind == TO_ADDRESS ? reason_of_address(&list, to->address, to->port, PROTOCOL_TCP)
                                  : NSBOX_NET_NOT_LISTED;
}

int may_reach(const union address *target, uint16_t port, uint32_t *reason)
{
    return may_lead_to(&list, target, port, PROTOCOL_TCP, is_own_address(target), reason);
}

int may_ask(const struct destination *to)
{
    if (!(list.head->flags & NSBOX_NET_ASKS))
        return 0;
    return to->kind == TO_NAME || (to->kind == TO_ADDRESS && address_may_be_asked(to->address, is_own_address));
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
