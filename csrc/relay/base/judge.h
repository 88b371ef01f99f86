/* judge.h: the verdict on a destination: the list's or, if it is silent, the caller's. */
#ifndef NSBOX_RELAY_JUDGE_H
#define NSBOX_RELAY_JUDGE_H

#include "relay.h"

/* A command's destination: a name, or an address that it gave itself. */
struct destination {
    struct name *name; /* or NULL */
    uint32_t address;
    uint16_t port;
    int protocol;
};

enum verdict judge(const struct destination *to);

/* Returns the reason why the verdict isn't VERDICT_YES. */
uint32_t reason_of_refusal(const struct destination *to, enum verdict verdict);

/* May the caller be asked about it? Never about an address of the host's, or one that belongs to no host on the
 * Internet. */
int may_ask(const struct destination *to);

/* ---- ask.c */

enum answer { ANSWER_PENDING, ANSWER_YES, ANSWER_NO };

/* A question to the caller, asked once for a sandbox, and its answer. It is kept as long as the sandbox exists. */
struct ask {
    uint64_t id;
    struct sandbox *sandbox;
    struct destination to;
    enum answer answer;
    int is_sent;
    int64_t deadline;
    struct ask *next;                 /* of the sandbox */
    struct ask *next_pending, **link; /* while it is pending */
};

/* The caller's answer, which may be pending. NULL: the caller can't be asked, *reason says why. */
struct ask *ask_about(struct sandbox *sandbox, const struct destination *to, uint32_t *reason);

void ask_answer(uint64_t id, int is_allowed);
void asks_tick(int64_t time);
void asks_end(struct sandbox *sandbox);
void asks_refuse_all(void); /* no caller is left to answer */

#endif
