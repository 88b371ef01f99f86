/* branch.h: what a warm interpreter calls to make branches. It loads this library with ctypes, whatever its own C
 * library is: the library needs none.
 *
 * All return 0 or more, or -errno. Only a process with one thread may call them.
 */
#ifndef NSBOX_BRANCH_H
#define NSBOX_BRANCH_H

#include "abi.h"

/* What the library shows; everything else in it is hidden. */
#define NSBOX_API __attribute__((visibility("default")))

/* Once, before there is any foreign code: records what is mounted where branches will mount something, in the request's
 * stamps. */
NSBOX_API int32_t nsbox_branch_look(nsbox_branch *b);

/* Before fork(2): makes a pid namespace, in which the next child will be, and its pid 1. On error nothing is left. */
NSBOX_API int32_t nsbox_branch_begin(nsbox_branch *b);

/* After fork(2), in the parent: the child's pid namespace lives as long as the child. has_forked: 0 if fork(2) has
 * failed; then pid 1 is ended and reaped. Otherwise the child and pid 1 have to be reaped, in this order. On error only
 * their zombies are left of the branch. */
NSBOX_API int32_t nsbox_branch_end(nsbox_branch *b, int32_t has_forked);

/* In the child: gives it its namespaces and its fresh file systems, and takes all privileges away. On error the child
 * must exit: it may be in any state. */
NSBOX_API int32_t nsbox_branch_enter(nsbox_branch *b);

/* In a fork of a branch: begins a session of its own, out of reach of the other forks. On error it must exit. */
NSBOX_API int32_t nsbox_branch_fork(void);

#endif
