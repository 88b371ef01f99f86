/* events.h: what the relay tells its caller. */
#ifndef NSBOX_RELAY_EVENTS_H
#define NSBOX_RELAY_EVENTS_H

#include "judge.h"

struct event {
    const struct sandbox *sandbox; /* or NULL: of none */
    uint64_t id;                   /* of what is published; or 0 */
    uint32_t what, verdict, reason;
    int error;
    int protocol;
    uint16_t port;
    const union address *target; /* or NULL */
    const char *name, *sni;      /* or NULL */
    uint64_t sent, received;
    int64_t milliseconds;
};

void tell(const struct event *event);

/* The caller's socket, for everything that has no socket of its own; -1: none any more. */
void events_to(int socket);

/* Has the caller ended, or let us go? */
int control_is_over(void);

/* Ask the caller. 0: it doesn't take more just now. */
int tell_ask(const struct ask *ask);

/* Say by a socket of its own, which is closed then, what has become of a sandbox; -1: of the relay, by the caller's. */
void tell_ready(int answer, uint64_t sandbox, int error, const char *step);

#endif
