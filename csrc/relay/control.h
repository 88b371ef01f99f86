/* control.h: the caller, at the other end of a socket. */
#ifndef NSBOX_RELAY_CONTROL_H
#define NSBOX_RELAY_CONTROL_H

#include "judge.h"
#include <stddef.h>
#include <stdint.h>

/* Serve the caller by this socket, as long as its process is there. 0 or -errno. */
int control_start(int socket, int caller);

/* Has the caller ended, or let us go? */
int control_is_over(void);

/* Ask the caller. 0: it doesn't take more just now. */
int tell_ask(const struct ask *ask);

/* After each batch of events. Is there to be another one at once? */
int control_tick(void);

/* Say by a socket of its own, which is closed then, what has become of a sandbox; -1: of the relay, by the caller's. */
void tell_ready(int answer, uint64_t sandbox, int error, const char *step);

#endif
