/* ask.c: asks the caller about what no entry decides, once for each destination of a sandbox; the SYN is held
 * meanwhile.
 *
 * No answer means no. A yes allows no more than an entry for that name or address would.
 */
#include "connection.h"
#include <stdlib.h>

enum { PATIENCE = 120 * SECOND, MOST_PENDING = 64, MOST_ASKS = 4096 };

static struct ask *pending, **end_of_pending = &pending; /* for all sandboxes, the oldest first */
static uint64_t last_id;

static int is_same(const struct destination *a, const struct destination *b)
{
    return a->name == b->name && a->port == b->port && a->protocol == b->protocol &&
           (a->name || a->address == b->address);
}

static struct ask **chain_of(struct sandbox *sandbox, const struct destination *to)
{
    uint32_t key = (to->name ? to->name->address : to->address) * 31 + to->port;
    return &sandbox->asks[(key ^ key >> 8) % BUCKETS];
}

static void append(struct ask *ask)
{
    ask->link = end_of_pending;
    *end_of_pending = ask;
    end_of_pending = &ask->next_pending;
    ask->sandbox->n_pending++;
}

static void take_out(struct ask *ask)
{
    *ask->link = ask->next_pending;
    if (ask->next_pending)
        ask->next_pending->link = ask->link;
    else
        end_of_pending = ask->link;
    ask->next_pending = NULL;
    ask->sandbox->n_pending--;
}

struct ask *ask_about(struct sandbox *sandbox, const struct destination *to, uint32_t *reason)
{
    struct ask **chain = chain_of(sandbox, to), *ask = *chain;
    while (ask && !is_same(&ask->to, to))
        ask = ask->next;
    *reason = NSBOX_NET_ASKED;
    if (ask || control_is_over())
        return ask;
    *reason = NSBOX_NET_LIMIT;
    if (sandbox->n_pending == MOST_PENDING || sandbox->n_asks == MOST_ASKS || !(ask = calloc(1, sizeof *ask)))
        return NULL;
    *ask = (struct ask){.id = ++last_id, .sandbox = sandbox, .to = *to, .deadline = now() + PATIENCE, .next = *chain};
    *chain = ask;
    sandbox->n_asks++;
    append(ask);
    ask->is_sent = tell_ask(ask);
    return ask;
}

static void settle(struct ask *ask, enum answer answer)
{
    take_out(ask);
    ask->answer = answer;
    connections_answered(ask);
}

void ask_answer(uint64_t id, int is_allowed)
{
    struct ask *ask = pending;
    while (ask && ask->id != id)
        ask = ask->next_pending;
    if (ask)
        settle(ask, is_allowed ? ANSWER_YES : ANSWER_NO);
}

void asks_tick(int64_t time)
{
    while (pending && pending->deadline <= time)
        settle(pending, ANSWER_NO);
    for (struct ask *ask = pending; ask; ask = ask->next_pending)
        if (!ask->is_sent)
            ask->is_sent = tell_ask(ask); /* the caller has read nothing for a while */
}

void asks_refuse_all(void)
{
    while (pending)
        settle(pending, ANSWER_NO);
}

void asks_end(struct sandbox *sandbox)
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct ask *ask = sandbox->asks[i], *next; ask; ask = next) {
            next = ask->next;
            if (ask->answer == ANSWER_PENDING)
                take_out(ask);
            free(ask);
        }
}
