/* tap.c: holds each SYN of a sandbox until there is a verdict on it, before anything else happens. */
#include "connection.h"
#include <errno.h>
#include <sys/socket.h>

enum { SYNS_PER_TURN = 64 };

static void refuse(struct sandbox *sandbox, const struct syn *syn, const struct name *name, uint32_t reason)
{
    const union address target = address_of(syn->target);
    /* A limit says nothing about the destination: act as if the server accepted no more. */
    int error = reason == NSBOX_NET_LIMIT ? ECONNREFUSED : error_of_refusal(syn, name);
    tell(&(struct event){.sandbox = sandbox,
                         .what = NSBOX_NET_CONNECT,
                         .verdict = NSBOX_NET_REFUSED,
                         .reason = reason,
                         .error = error,
                         .port = syn->target_port,
                         .target = name ? NULL : &target,
                         .name = name ? name->text : NULL});
    syn_refuse(sandbox, syn, error); /* do this last, so that a caller that sees the client's end has the event */
}

static void on_syn(struct sandbox *sandbox, const struct syn *syn)
{
    struct connection *c = connection_find(sandbox, syn);
    if (c && c->state != ENDED && c->syn.sequence == syn->sequence) {
        if (c->state == ACCEPTING) /* the SYN that was let in was lost */
            send_packet(sandbox, c->syn.bytes, c->syn.size, c->syn.target);
        return;
    }
    if (c)
        connection_end(c); /* the client has given up, and its port has another connection */
    struct name *name = name_by_address(syn->target);
    if (name)
        name_use(sandbox, name);
    const struct destination to = {name, syn->target, syn->target_port, PROTOCOL_TCP};
    enum verdict verdict = judge(&to);
    uint32_t reason = reason_of_refusal(&to, verdict);
    int is_asked = verdict == VERDICT_NO && may_ask(&to);
    if (verdict != VERDICT_YES && !is_asked) {
        refuse(sandbox, syn, name, reason);
        return;
    }
    if (sandbox->n_connections >= list.head->connections) {
        refuse(sandbox, syn, name, NSBOX_NET_LIMIT);
        return;
    }
    struct ask *ask = is_asked ? ask_about(sandbox, &to, &reason) : NULL;
    if (is_asked && (!ask || ask->answer == ANSWER_NO))
        refuse(sandbox, syn, name, reason);
    else
        connection_begin(sandbox, syn, name, ask);
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
