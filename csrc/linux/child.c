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

static int create_command(struct job *j)
{
    unsigned long flags = CLONE_PARENT | CLONE_VFORK | CLONE_PARENT_SETTID;
    /* setresuid(2) to another kernel id would make the shared memory, so the caller, non-dumpable. */
    if (!(j->req->flags & NSBOX_FORK_COMMAND))
        flags |= CLONE_VM;
    TRY(&j->b, NSBOX_STEP_COMMAND, arch_clone(flags, j->command_stack, &j->res->pid, 0, command, j));
    return 0;
}

static int build(struct job *j, int32_t *op)
{
    int ret = hold_lifeline(j);
    if (ret < 0)
        return ret;
    ret = enter_namespaces(j);
    if (ret < 0)
        return ret;
    j->umask = (unsigned)sys_umask(0);
    ret = init_start(j);
    if (ret < 0)
        return ret;
    ret = build_root(&j->b, op);
    if (ret < 0)
        return ret;
    ret = init_join_net(&j->b);
    if (ret < 0)
        return ret;
    ret = enter_second_userns(j);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_INIT, init_await(j));
    return create_command(j);
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
