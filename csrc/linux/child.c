/* child.c: the chronology of the mediator. When something happens is decided here; how, elsewhere. */
#include "child.h"

/* The caller's handlers point into its code: none may run in a child. Ignored signals stay ignored. */
static void reset_handlers(void)
{
    struct sys_sigaction old, reset = {.handler = SIG_DFL};
    for (int sig = 1; sig <= SYS_NSIG; sig++) {
        if (sys_sigaction(sig, 0, &old) < 0)
            continue;
        if (old.handler != SIG_DFL && old.handler != SIG_IGN)
            sys_sigaction(sig, &reset, 0);
    }
}

/* Ties the set-up to the life of the caller. PR_SET_PDEATHSIG is right for the mediator alone: the thread that
 * it watches is the one that waits for us. A pidfd watches the process; its pid is checked after opening,
 * since an orphan's parent is somebody else. */
static int hold_lifeline(struct job *j)
{
    TRY(&j->b, NSBOX_STEP_LIFELINE, sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0));
    TRY(&j->b, NSBOX_STEP_LIFELINE, j->lifeline = sys_pidfd_open(j->caller));
    return sys_getppid() == j->caller ? 0 : -ESRCH;
}

static int is_open(int fd)
{
    return fd < 0 ? 0 : sys_get_fd_flags(fd);
}

/* The caller's descriptors, before we open any: a number that it has closed would soon be one of ours. */
static int check_fds(struct job *j, int32_t *op)
{
    const nsbox_request *r = j->req;
    TRY(&j->b, NSBOX_STEP_STDIO, is_open(r->stdin_fd));
    TRY(&j->b, NSBOX_STEP_STDIO, is_open(r->stdout_fd));
    TRY(&j->b, NSBOX_STEP_STDIO, is_open(r->stderr_fd));
    for (uint32_t i = 0; i < r->n_pass_fds; i++)
        TRY(&j->b, NSBOX_STEP_FDS, is_open(r->pass_fds[i]));
    for (uint32_t i = 0, n = plan_nops(r->plan); i < n; i++) {
        if (!(plan_op(r->plan, i)->flags & NSBOX_FROM_FD))
            continue;
        *op = (int32_t)i;
        TRY(&j->b, NSBOX_STEP_SOURCE, is_open(plan_op(r->plan, i)->fd));
    }
    *op = -1;
    return 0;
}

static void lower(int *least, int fd, int from)
{
    if (fd >= from && fd < *least)
        *least = fd;
}

/* The first descriptor from `from` up that the plan or the command needs. */
static int next_needed(const nsbox_request *r, int from)
{
    int least = INT32_MAX;
    lower(&least, r->stdin_fd, from);
    lower(&least, r->stdout_fd, from);
    lower(&least, r->stderr_fd, from);
    for (uint32_t i = 0; i < r->n_pass_fds; i++)
        lower(&least, r->pass_fds[i], from);
    for (uint32_t i = 0, n = plan_nops(r->plan); i < n; i++)
        if (plan_op(r->plan, i)->flags & NSBOX_FROM_FD)
            lower(&least, plan_op(r->plan, i)->fd, from);
    return least;
}

/* Our table is a copy, but its size is limited too: what the command won't get makes room for ours. */
static int close_unneeded(struct job *j)
{
    const nsbox_request *r = j->req;
    if (!(r->flags & NSBOX_CLOSE_FDS))
        return 0;
    for (int from = 3;;) {
        int needed = next_needed(r, from);
        if (needed == INT32_MAX)
            return sys_close_range((unsigned)from, ~0U);
        if (needed > from) {
            int ret = sys_close_range((unsigned)from, (unsigned)needed - 1);
            if (ret < 0)
                return ret;
        }
        from = needed + 1;
    }
}

static int open_devnull(struct job *j)
{
    const nsbox_request *r = j->req;
    if (r->stdin_fd != NSBOX_DEVNULL && r->stdout_fd != NSBOX_DEVNULL && r->stderr_fd != NSBOX_DEVNULL)
        return 0;
    TRY(&j->b, NSBOX_STEP_STDIO, j->devnull = fs_devnull(&j->b));
    return 0;
}

static int create_command(struct job *j)
{
    unsigned long flags = CLONE_PARENT | CLONE_PARENT_SETTID;
    /* setresuid(2) to another kernel id would make the shared memory, so the caller, non-dumpable: then a copy. */
    flags |= j->req->flags & NSBOX_FORK_COMMAND ? CLONE_VFORK : CLONE_VM | CLONE_CHILD_CLEARTID;
    j->command_tid = j->req->flags & NSBOX_FORK_COMMAND ? 0 : 1;
    j->b.step = NSBOX_STEP_COMMAND;
    long pid = arch_clone(flags, j->command_stack, &j->res->pid, (int *)(void *)&j->command_tid, command, j);
    if (pid < 0)
        j->command_tid = 0;
    return pid < 0 ? (int)pid : 0;
}

/* The last steps that take time: they overlap with the command's own preparation. */
static int close_up(struct job *j)
{
    int ret = drop_old_root(&j->b);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_INIT, init_await(j));
    return 0;
}

static int launch(struct job *j)
{
    int ret;
    if (j->req->flags & NSBOX_FORK_COMMAND) { /* it can't be told anything later */
        ret = close_up(j);
        j->gate = GATE_OPEN;
        return ret < 0 ? ret : create_command(j);
    }
    ret = create_command(j);
    if (ret < 0)
        return ret;
    ret = close_up(j);
    if (ret < 0)
        report(j->res, ret, j->b.step, -1); /* before the command can say anything else */
    __atomic_store_n(&j->gate, ret < 0 ? GATE_ABORT : GATE_OPEN, __ATOMIC_RELEASE);
    sys_futex_wake(&j->gate);
    return ret;
}

static int build(struct job *j, int32_t *op)
{
    int ret = check_fds(j, op);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_FDS, close_unneeded(j));
    ret = hold_lifeline(j);
    if (ret < 0)
        return ret;
    ret = enter_namespaces(j);
    if (ret < 0)
        return ret;
    j->umask = (unsigned)sys_umask(0);
    ret = init_start(j);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_ROOT, j->b.proc = sys_openat(AT_FDCWD, "/proc", O_PATH | O_DIRECTORY, 0));
    ret = open_devnull(j);
    if (ret < 0)
        return ret;
    ret = build_root(&j->b, op);
    if (ret < 0)
        return ret;
    ret = init_join_net(&j->b);
    return ret < 0 ? ret : launch(j);
}

void mediator(void *arg)
{
    struct job *j = arg;
    int32_t op = -1;
    reset_handlers();
    int ret = build(j, &op);
    if (ret < 0)
        report(j->res, ret, j->b.step, op);
    /* Nobody may go on in the caller's memory after us. */
    init_await(j);
    sys_exit(0);
}
