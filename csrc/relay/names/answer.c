/* answer.c: the name server of a sandbox, at 198.19.0.53. Names that aren't listed never leave the sandbox. */
#include "stream.h"
#include "relay/base/events.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { QUESTIONS_PER_TURN = 64, NEW_NAMES_PER_SECOND = 50, MOST_QUESTIONS = 256 };

static const char NOT_LISTED[] = "not in this sandbox's network list";

/* A question that waits for the host's resolver. */
struct question {
    struct waiter waiter;
    struct sandbox *sandbox;
    struct dns_question parsed;
    uint8_t bytes[DNS_MOST];
    struct sockaddr_in client; /* of UDP */
    struct stream *stream;     /* or NULL */
};

static void tell_question(const struct sandbox *sandbox, const char *name, uint32_t verdict, uint32_t reason)
{
    tell(
        &(struct event){.sandbox = sandbox, .what = NSBOX_NET_DNS, .verdict = verdict, .reason = reason, .name = name});
}

/* Report a name that failed, or was refused because of one of its addresses. */
static void tell_trouble(const struct sandbox *sandbox, const struct name *name, uint32_t reason)
{
    int has_failed = reason == NSBOX_NET_UPSTREAM;
    tell(&(struct event){.sandbox = sandbox,
                         .what = NSBOX_NET_DNS,
                         .verdict = has_failed ? NSBOX_NET_FAILED : NSBOX_NET_REFUSED,
                         .reason = reason,
                         .error = !has_failed                  ? 0
                                  : name->code == DNS_NXDOMAIN ? ENOENT
                                                               : EAGAIN,
                         .target = has_failed ? NULL : &name->targets[name->n_targets - 1],
                         .name = name->text});
}

static void send_answer(struct question *q, const struct dns_answer *answer)
{
    uint8_t bytes[DNS_MOST];
    size_t size = dns_write(bytes, q->bytes, &q->parsed, answer);
    if (q->stream)
        stream_send(q->stream, bytes, size);
    else
        sendto(q->sandbox->dns_udp.fd, bytes, size, 0, (struct sockaddr *)&q->client, sizeof q->client);
}

static int is_asked(void)
{
    return (list.head->flags & NSBOX_NET_ASKS) != 0;
}

static int is_known(const char *text)
{
    enum verdict verdict = rules_name(&list, text);
    return verdict == VERDICT_YES || (verdict == VERDICT_NO && is_asked());
}

/* Can any address of a name be connected to? The port isn't known yet. */
static int has_target(const struct name *name, uint32_t *reason)
{
    for (int i = 0; i < name->n_targets; i++)
        if (may_reach(&name->targets[i], 0, PROTOCOL_TCP, reason))
            return 1;
    return 0;
}

static struct dns_answer answer_of(struct sandbox *sandbox, struct name *name, unsigned type)
{
    uint32_t reason = NSBOX_NET_UPSTREAM;
    if (!is_known(name->text)) { /* the list has changed meanwhile */
        tell_question(sandbox, name->text, NSBOX_NET_REFUSED, NSBOX_NET_NOT_LISTED);
        return (struct dns_answer){.code = DNS_NXDOMAIN, .reason = NOT_LISTED};
    }
    if (name->code != DNS_NOERROR) {
        tell_trouble(sandbox, name, reason);
        return (struct dns_answer){.code = name->code};
    }
    if (!has_target(name, &reason)) {
        tell_trouble(sandbox, name, reason);
        return (struct dns_answer){.code = DNS_NXDOMAIN, .reason = "its addresses are refused"};
    }
    tell_question(sandbox, name->text, NSBOX_NET_ALLOWED, 0);
    /* Inside there is only IPv4; and without records of type HTTPS a client learns no key for ECH. */
    if (type != DNS_A)
        return (struct dns_answer){.code = DNS_NOERROR};
    name_tell(sandbox, name);
    return (struct dns_answer){.address = name->address};
}

static void on_name(struct waiter *waiter, struct name *name)
{
    struct question *q = (struct question *)(void *)waiter;
    struct sandbox *sandbox = q->sandbox;
    if (!sandbox->is_ended && !(q->stream && q->stream->is_over)) {
        const struct dns_answer answer = answer_of(sandbox, name, q->parsed.type);
        send_answer(q, &answer);
    }
    if (q->stream)
        stream_resume(q->stream);
    free(q);
    sandbox->n_questions--;
    sandbox_free(sandbox);
}

/* Returns a listed name, which may be new. NULL: there are too many, or too many new ones in this second. */
static struct name *known(struct sandbox *sandbox, const char *text)
{
    struct name *name = name_by_text(text);
    if (name)
        return name;
    int64_t second = now() / SECOND;
    if (sandbox->names_since != second) {
        sandbox->names_since = second;
        sandbox->new_names = 0;
    }
    if (sandbox->n_names >= MOST_NAMES_OF_ONE || sandbox->new_names == NEW_NAMES_PER_SECOND)
        return NULL;
    name = name_add(text);
    sandbox->new_names += name != NULL;
    return name;
}

/* Answer without asking the caller, who is asked at the first connection. Until then nothing leaves the host, but
 * the name has an address. */
static void answer_unasked(struct sandbox *sandbox, const struct dns_question *question, struct dns_answer *answer)
{
    struct name *name = known(sandbox, question->name);
    tell_question(sandbox, question->name, name ? NSBOX_NET_ALLOWED : NSBOX_NET_REFUSED,
                  name ? NSBOX_NET_UNASKED : NSBOX_NET_LIMIT);
    answer->code = name ? DNS_NOERROR : DNS_SERVFAIL;
    if (!name || question->type != DNS_A)
        return;
    name_tell(sandbox, name);
    answer->address = name->address;
}

/* Returns the name that has this address, unless only another sandbox has asked for it. */
static const char *reverse_of(const struct sandbox *sandbox, uint32_t address)
{
    const struct name *name = name_by_address(address);
    return name && (name_is_told(sandbox, name) || rules_spells(&list, name->text)) ? name->text : NULL;
}

/* Give the answer, if it can be given at once. 0: ask the host, for *name. */
static int answer_at_once(struct sandbox *sandbox, const struct dns_question *question, struct dns_answer *answer,
                          struct name **name)
{
    uint32_t address;
    *answer = (struct dns_answer){.code = question->code};
    if (question->code != DNS_NOERROR)
        return 1;
    if (dns_reverse(question->name, &address)) {
        answer->name = question->type == DNS_PTR ? reverse_of(sandbox, address) : NULL;
        answer->code = answer->name ? DNS_NOERROR : DNS_NXDOMAIN;
        return 1;
    }
    if (!strcmp(question->name, "localhost")) { /* RFC 6761, 6.3 */
        answer->address = question->type == DNS_A ? INADDR_LOOPBACK : 0;
        return 1;
    }
    enum verdict verdict = question->name[0] ? rules_name(&list, question->name) : VERDICT_NO;
    if (verdict == VERDICT_NO && question->name[0] && is_asked()) {
        answer_unasked(sandbox, question, answer);
        return 1;
    }
    if (verdict != VERDICT_YES) {
        *answer = (struct dns_answer){.code = DNS_NXDOMAIN, .reason = NOT_LISTED};
        tell_question(sandbox, question->name, NSBOX_NET_REFUSED,
                      verdict == VERDICT_DENIED ? NSBOX_NET_DENIED : NSBOX_NET_NOT_LISTED);
        return 1;
    }
    *name = sandbox->n_questions < MOST_QUESTIONS ? known(sandbox, question->name) : NULL;
    if (*name)
        return 0;
    answer->code = DNS_SERVFAIL;
    tell_question(sandbox, question->name, NSBOX_NET_REFUSED, NSBOX_NET_LIMIT);
    return 1;
}

/* Answer a question, at once or later. */
void answer_question(struct sandbox *sandbox, const uint8_t *bytes, size_t size, const struct sockaddr_in *client,
                     struct stream *stream)
{
    struct question now_it = {.sandbox = sandbox, .stream = stream};
    struct dns_answer answer;
    struct name *name;
    if (!dns_read(bytes, size, &now_it.parsed))
        return;
    memcpy(now_it.bytes, bytes, size);
    if (client)
        now_it.client = *client;
    if (answer_at_once(sandbox, &now_it.parsed, &answer, &name)) {
        send_answer(&now_it, &answer);
        return;
    }
    struct question *q = malloc(sizeof *q);
    if (!q)
        return; /* the client asks again */
    *q = now_it;
    q->waiter.done = on_name;
    sandbox->n_questions++;
    if (stream)
        stream_pause(stream);
    resolve(sandbox, name, &q->waiter);
}

void on_dns_udp(struct source *source, uint32_t events)
{
    struct sandbox *sandbox = (struct sandbox *)(void *)((char *)source - offsetof(struct sandbox, dns_udp));
    (void)events;
    for (int i = 0; i < QUESTIONS_PER_TURN; i++) {
        uint8_t bytes[DNS_MOST];
        struct sockaddr_in client;
        socklen_t size = sizeof client;
        ssize_t n = recvfrom(source->fd, bytes, sizeof bytes, MSG_TRUNC, (struct sockaddr *)&client, &size);
        if (n < 0)
            return;
        if (n <= DNS_MOST)
            answer_question(sandbox, bytes, (size_t)n, &client, NULL);
    }
}
