/* tap.c: each SYN of a sandbox's, held: the verdict on it, before anything else happens. */
#include "connection.h"
#include <errno.h>
#include <sys/socket.h>

enum { SYNS_PER_TURN = 256 };

static int is_loopback(uint32_t address)
{
    return address >> 24 == 127;
}

static enum verdict judge(const struct syn *syn, const struct name *name)
{
    if (name)
        return rules_name_port(&list, name->text, syn->target_port, PROTOCOL_TCP);
    if (is_loopback(syn->target))
        return syn->target == INADDR_LOOPBACK ? rules_localhost(&list, syn->target_port) : VERDICT_NO;
    if (syn->target >> 17 == INVENTED >> 17) /* 198.18.0.0/15: nobody's that isn't a name's */
        return VERDICT_NO;
    enum verdict strict = rules_address(&list, syn->target, syn->target_port, PROTOCOL_TCP, 1);
    if (strict != VERDICT_NO)
        return strict;
    const union target target = {.four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(syn->target)}};
    return rules_address(&list, syn->target, syn->target_port, PROTOCOL_TCP, is_own_address(&target));
}

static void turn_away(struct sandbox *sandbox, const struct syn *syn, const struct name *name, uint32_t reason)
{
    /* A name that is known has closed ports; an address that isn't listed is none that leads anywhere. */
    int error = name || is_loopback(syn->target) ? ECONNREFUSED : EACCES;
    const union target target = {.four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(syn->target)}};
    refuse(sandbox, syn, error);
    tell(&(struct event){.sandbox = sandbox,
                         .what = NSBOX_NET_CONNECT,
                         .verdict = NSBOX_NET_REFUSED,
                         .reason = reason,
                         .port = syn->target_port,
                         .target = name ? NULL : &target,
                         .name = name ? name->text : NULL});
}

static void on_syn(struct sandbox *sandbox, const struct syn *syn)
{
    struct connection *c = connection_find(sandbox, syn);
    if (c && c->state != ENDED && c->syn.sequence == syn->sequence) {
        if (c->state == ACCEPTING) /* what was let in was lost */
            send_packet(sandbox, c->syn.bytes, c->syn.size, c->syn.target);
        return;
    }
    if (c)
        connection_end(c); /* the client has given it up, and its port has another one */
    struct name *name = name_by_address(syn->target);
    enum verdict verdict = judge(syn, name);
    if (verdict != VERDICT_YES)
        turn_away(sandbox, syn, name, verdict == VERDICT_DENIED ? NSBOX_NET_DENIED : NSBOX_NET_NOT_LISTED);
    else if (sandbox->n_connections >= list.head->connections)
        turn_away(sandbox, syn, name, NSBOX_NET_LIMIT);
    else
        connection_begin(sandbox, syn, name);
}

void on_tap(struct source *source, uint32_t events)
{
    struct sandbox *sandbox = (struct sandbox *)(void *)((char *)source - offsetof(struct sandbox, tap));
    (void)events;
    for (int i = 0; i < SYNS_PER_TURN; i++) {
        uint8_t bytes[PACKET_MOST];
        struct syn syn;
        ssize_t n = recv(source->fd, bytes, sizeof bytes, MSG_TRUNC);
        if (n < 0)
            return;
        if (packet_syn(bytes, (size_t)n, &syn))
            on_syn(sandbox, &syn);
    }
}
