/* guard.h: the filter of guard.c as a value, for its unit test. */
#ifndef NSBOX_GUARD_H
#define NSBOX_GUARD_H

#include <stdint.h>

#include <linux/filter.h>

enum { GUARD_MAX_CODE = 160, GUARD_MAX_RULES = 16 };

/* Written from its end to its beginning, since jumps only lead forward: what they lead to is there already. */
struct guard {
    struct sock_filter code[GUARD_MAX_CODE];
    unsigned first;                 /* the program begins here and goes on to the end */
    unsigned allow, absent, refuse; /* the verdicts */
    unsigned rules[GUARD_MAX_RULES];
};

/* flags: enum nsbox_spawn_flag, of which NSBOX_NESTED and NSBOX_NO_USERNS matter. */
void guard_build(struct guard *g, uint32_t flags);

#endif
