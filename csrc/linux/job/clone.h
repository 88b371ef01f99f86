/* clone.h: makes processes in the caller's memory, and tells when one has left it. */
#ifndef NSBOX_CLONE_H
#define NSBOX_CLONE_H

#include "kernel/sys.h"

/* A process in the caller's memory. */
struct sharer {
    int pid;
    uint32_t tid; /* not 0 as long as the process is there: see await_exec() */
};

/* Waits until the child whose CLONE_CHILD_CLEARTID word this is has left our memory, by exec or exit. True then,
 * false after ten milliseconds. The kernel can fail to write the word of a process that is being killed (it gives up
 * a page fault then), so a process that goes on waiting also checks whether the other still exists. */
static inline int await_exec(uint32_t *tid)
{
    static const int64_t ten_ms[2] = {0, 10000000};
    uint32_t value = __atomic_load_n(tid, __ATOMIC_ACQUIRE);
    if (value)
        sys_futex_wait(tid, value, ten_ms);
    if (__atomic_load_n(tid, __ATOMIC_ACQUIRE))
        return 0;
    sys_futex_wake(tid); /* the kernel wakes only one of those that wait */
    return 1;
}

/* struct clone_args of the kernel, as far as the cgroup (Linux 5.7). */
struct clone_args_ {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

/* More arguments of clone3(2): where it writes the pid, the word that it clears at the end, and a cgroup's
 * descriptor. */
struct clone_more {
    int *parent_tid;
    uint32_t *child_tid;
    int cgroup;
};

#define INTO_CGROUP 0x200000000ULL /* CLONE_INTO_CGROUP */
#define CLEAR_SIGHAND                                                                                                  \
    0x100000000ULL /* CLONE_CLEAR_SIGHAND (Linux 5.5): handlers become the default, nothing else does */

/* Like arch_clone(), with what only clone3(2) can do: it clears all handlers in one go, or starts the process in
 * another cgroup. Moving a process later would wait for a lock that all forks of the machine share. */
static inline long clone_by_args(uint64_t flags, uint8_t *top, const struct clone_more *more, void (*fn)(void *),
                                 void *arg)
{
    enum { BELOW = 4096 }; /* the part of its stack that the kernel knows about */
    void **sp = (void **)(void *)top;
    *--sp = arg;
    *--sp = (void *)fn;
    struct clone_args_ args;
    uint64_t *words = (uint64_t *)(void *)&args;
    for (size_t i = 0; i < sizeof args / sizeof *words; i++) /* no initializer: it could become a call of memset */
        words[i] = 0;
    args.flags = flags;
    args.stack = (uint64_t)(uintptr_t)sp - BELOW;
    args.stack_size = BELOW;
    args.parent_tid = (uint64_t)(uintptr_t)more->parent_tid;
    args.child_tid = (uint64_t)(uintptr_t)more->child_tid;
    if (flags & INTO_CGROUP)
        args.cgroup = (uint64_t)more->cgroup;
    return arch_clone_raw(435, (long)&args, sizeof args, 0, 0); /* clone3(2) */
}

static inline long clone_into_cgroup(unsigned long flags, uint8_t *top, int cgroup, void (*fn)(void *), void *arg)
{
    const struct clone_more more = {.cgroup = cgroup};
    return clone_by_args(flags | INTO_CGROUP, top, &more, fn, arg);
}

static inline long clone_sharer(struct sharer *s, unsigned long flags, uint8_t *top, void (*fn)(void *), void *arg)
{
    s->tid = 1;
    long pid = arch_clone(flags | CLONE_VM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, top, &s->pid,
                          (int *)(void *)&s->tid, fn, arg);
    if (pid < 0)
        s->tid = 0;
    return pid;
}

#endif
