/* events.h: the relay's reports to its caller. */
#ifndef NSBOX_RELAY_EVENTS_H
#define NSBOX_RELAY_EVENTS_H

#include "judge.h"

struct event {
    const struct sandbox *sandbox; /* or NULL: the event belongs to none */
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

/* Sets the caller's socket, for every event that has no socket of its own; -1: there is none any more. */
void events_to(int socket);

/* Has the caller ended, or let us go? */
int control_is_over(void);

/* Ask the caller. 0: it accepts no more just now. */
int tell_ask(const struct ask *ask);

/* Report on a sandbox through a socket of its own, which is then closed; -1: report on the relay, through the
 * caller's. */
void tell_ready(int answer, uint64_t sandbox, int error, const char *step);

#endif
