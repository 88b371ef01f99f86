/* queue.h: no signals are queued for pid 1.
 *
 * Signals that the command sends us, and that we block, would be queued and would count as the caller's:
 * RLIMIT_SIGPENDING is the receiver's limit, and counts by user. Signals up to 31 arrive with their full siginfo
 * whatever the limit is (setrlimit(2)), so the caller's must be among them. Under this limit the others arrive once,
 * without one.
 */
#ifndef NSBOX_QUEUE_H
#define NSBOX_QUEUE_H

#include "abi.h"
#include "linux/kernel/sys.h"

enum { SIGNALS_QUEUED = 11 /* RLIMIT_SIGPENDING */ };
_Static_assert(NSBOX_END < 32 && NSBOX_ASK < 32 && NSBOX_ASK_PATIENTLY < 32,
               "the caller's signals tell who sends them");

/* hard: the value it may be raised to again. Where a filter refuses the call, no command has a limit either. */
static inline void queue_no_signals(uint64_t hard)
{
    const struct sys_rlimit none = {0, hard};
    sys_prlimit(SIGNALS_QUEUED, &none, 0);
}

#endif
