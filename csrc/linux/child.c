/* child.c: the chronology of the mediator. When something happens is decided here; how, elsewhere. */
#include "child.h"

/* PR_SET_PDEATHSIG is right for the mediator alone: the thread that it watches is the one that waits for us. All others
 * are tied to the caller by the init's pidfd of it. */
static int die_with_caller(struct job *j)
{
    TRY(&j->b, NSBOX_STEP_LIFELINE, sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0));
    return sys_getppid() == j->caller ? 0 : -ESRCH;
}

static int is_open(const struct job *j, int fd)
{
    return fd < 0 ? 0 : fd == j->lifeline || fd == j->said[0] || fd == j->said[1] ? -EBADF : sys_get_fd_flags(fd);
}

/* The caller's descriptors, before we open any more: a number that it has closed would soon be one of ours. */
static int check_fds(struct job *j, int32_t *op)
{
    const nsbox_request *r = j->req;
    TRY(&j->b, NSBOX_STEP_STDIO, is_open(j, r->stdin_fd));
    TRY(&j->b, NSBOX_STEP_STDIO, is_open(j, r->stdout_fd));
    TRY(&j->b, NSBOX_STEP_STDIO, is_open(j, r->stderr_fd));
    for (uint32_t i = 0; i < r->n_pass_fds; i++)
        TRY(&j->b, NSBOX_STEP_FDS, is_open(j, r->pass_fds[i]));
    for (uint32_t i = 0, n = plan_nops(r->plan); i < n; i++) {
        if (!(plan_op(r->plan, i)->flags & NSBOX_FROM_FD))
            continue;
        *op = (int32_t)i;
        TRY(&j->b, NSBOX_STEP_SOURCE, is_open(j, plan_op(r->plan, i)->fd));
    }
    *op = -1;
    return 0;
}

static void lower(int *least, int fd, int from)
{
    if (fd >= from && fd < *least)
        *least = fd;
}

/* The first descriptor from `from` up that we, the plan or the command need. */
static int next_needed(const struct job *j, int from)
{
    const nsbox_request *r = j->req;
    int least = INT32_MAX;
    lower(&least, j->lifeline, from);
    lower(&least, j->said[0], from);
    lower(&least, j->said[1], from);
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
    if (!(r->flags & NSBOX_CLOSE_FDS) || r->flags & NSBOX_PREEXEC) /* which may use them: they are closed after it */
        return 0;
    for (int from = 3;;) {
        int needed = next_needed(j, from);
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

/* No descriptor of ours may have a number that the command's stdio takes: what the caller has closed there is filled up
 * to the exec. */
static int fill_standard_fds(const struct job *j)
{
    int ret = 0;
    for (int fd = 0; fd < 3 && ret >= 0; fd++)
        if (sys_get_fd_flags(fd) < 0)
            ret = sys_dup3(j->lifeline, fd, SYS_O_CLOEXEC);
    return ret;
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
    const int own[] = {j->init_image, j->init_proc, j->b.root, j->b.base, j->b.scratch, j->b.masked, j->b.parent};
    for (unsigned i = 0; i < sizeof own / sizeof own[0]; i++)
        j->own[i] = own[i]; /* as they are in the command's table; they change in ours */
    j->command_made = 1;
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

static void set_gate(struct job *j, enum gate gate)
{
    __atomic_store_n(&j->gate, gate, __ATOMIC_RELEASE);
    sys_futex_wake(&j->gate);
}

/* From the pivot on. The command may go on when the init is up (until its exec it could be traced, as the caller's memory
 * can be) and the old root has gone. The latter it sees for itself: umount2(2) has detached it long before it returns. */
static int close_up(struct job *j, int32_t *op)
{
    int fork = (j->req->flags & NSBOX_FORK_COMMAND) != 0; /* with a copy of our memory: it comes when all is settled */
    int ret = j->command_made || fork ? 0 : create_command(j);
    if (ret < 0)
        return ret;
    if (init_is_up(j))
        set_gate(j, GATE_OPEN);
    ret = drop_old_root(&j->b);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_INIT, init_await(j));
    set_gate(j, GATE_OPEN);
    if (!fork)
        return 0;
    ret = init_join_net(j, &j->b.step, op);
    return ret < 0 ? ret : create_command(j);
}

static int enter(struct job *j, int32_t *op)
{
    int ret = check_fds(j, op);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_FDS, close_unneeded(j));
    TRY(&j->b, NSBOX_STEP_STDIO, fill_standard_fds(j));
    ret = die_with_caller(j);
    return ret < 0 ? ret : enter_namespaces(j);
}

/* The command prepares itself beside the mounts, but only from when the init is up, and asleep: then the kernel has a
 * processor for it. A third process would be queued behind us. */
int create_command_early(struct builder *b)
{
    struct job *j = job_of(b);
    if (j->command_made || j->req->flags & NSBOX_FORK_COMMAND || !init_is_up(j))
        return 0;
    return create_command(j);
}

static int build(struct job *j, int32_t *op)
{
    int ret = enter(j, op);
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
    return ret < 0 ? ret : close_up(j, op);
}

void mediator(void *arg)
{
    struct job *j = arg;
    int32_t op = -1;
    int ret = build(j, &op);
    if (ret < 0) {
        report(j->res, ret, j->b.step, op); /* before the command can say anything else */
        set_gate(j, GATE_ABORT);
    }
    if (ret >= 0 && j->req->flags & NSBOX_STAY)
        sys_write(j->setup_pipe[1], "", 1);
    /* Nobody may go on in the caller's memory after us. */
    init_await_leave(j);
    sys_exit(0);
}
