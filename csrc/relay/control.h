/* control.h: the caller, at the other end of a socket. */
#ifndef NSBOX_RELAY_CONTROL_H
#define NSBOX_RELAY_CONTROL_H

#include "judge.h"
#include <stddef.h>
#include <stdint.h>

/* Serve the caller by this socket, as long as its process is there. 0 or -errno. */
int control_start(int socket, int caller);

/* Has the caller ended, or closed its socket? */
int control_is_over(void);

/* Ask the caller. 0: it can't take more just now. */
int tell_ask(const struct ask *ask);

/* After each batch of events. Is there to be another one at once? */
int control_tick(void);

/* Report the result for a sandbox by its own socket, which is then closed; -1: that for the relay, by the caller's. */
void tell_ready(int answer, uint64_t sandbox, int error, const char *step);

#endif
