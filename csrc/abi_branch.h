/* abi_branch.h: the part of abi.h about branches: forks of a warm interpreter in namespaces of their own (branch/).
 *
 * An interpreter that loads branch/ gets its request as a blob: an nsbox_request with all that it points to, in which
 * each pointer is an offset. The positions of the pointers come with it. It adds its own address to each of them.
 */
#ifndef NSBOX_ABI_BRANCH_H
#define NSBOX_ABI_BRANCH_H

#include <stdint.h>

enum nsbox_branch_constants { NSBOX_MOST_MOUNTS = 16 };

typedef struct nsbox_branch {
    /* plan: what each branch gets fresh, in a copy of the interpreter's mounts. stamps: one for each of its ops, of what
     * the interpreter has mounted there. namespaces: those of a branch.
     * uid_map2, gid_map2: maps of a branch's own user namespace, with one id each; NULL: it stays in the
     * interpreter's. */
    const nsbox_request *request;
    int32_t image_fd;    /* the init image */
    int32_t lifeline_fd; /* a pidfd of the process that begins the branch: everything ends with that */
    int32_t pid_fd;      /* that process's own pid namespace, where its next children will be; or -1: nobody's */
    int32_t spare;       /* 0 */
    int32_t net_fd;      /* a ready net namespace to be joined instead of making one; or -1 */
    int32_t relay_fd;    /* a socket to the relay (net/wire.h), which is sent the branch's net namespace; or -1 */
    uint64_t relay_id;   /* the branch's id there */
    /* Results; a descriptor is -1 if there is none. */
    int32_t init_pid; /* pid 1 of the branch, a child of the process that begins it */
    int32_t init_pidfd;
    int32_t says_fd;   /* the read end, nonblocking, of the pipe into which it writes nsbox_word */
    int32_t setup_fd;  /* the write end of the pipe that tells it that the set-up is over */
    int32_t error;     /* an errno, or 0 */
    int32_t op;        /* index into the plan, with STEP_LANDLOCK into the ruleset's paths; -1 for none */
    uint32_t step;     /* enum nsbox_step */
    uint32_t n_mounts; /* not a result */
    int32_t mounts[NSBOX_MOST_MOUNTS]; /* detached mounts, which the plan puts down as the first that were lifted */
    char detail[64];                   /* with STEP_NET: what the relay couldn't make, or "" */
} nsbox_branch;

#endif
