/* mediator.c: the order of events in the mediator. This file decides when something happens; how is decided
 * elsewhere. */
#include "process.h"

/* Makes the mediator end with the caller. PR_SET_PDEATHSIG suits it alone: the thread that it watches is the one
 * that waits for us. All other processes are tied to the caller by the init's pidfd of it. */
static int die_with_caller(struct job *j)
{
    TRY(&j->b, NSBOX_STEP_LIFELINE, sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0));
    return sys_getppid() == j->caller ? 0 : -ESRCH;
}

static int create_command(struct job *j)
{
    remember_own(j);
    unsigned long flags = CLONE_PARENT | CLONE_PARENT_SETTID;
    if (precedes_init(j->req)) { /* for help_set_up() */
        flags |= CLONE_FILES;
        sys_getcpu(&j->parallel.cpu);
    }
    /* setresuid(2) to another kernel id would make the shared memory, and so the caller, non-dumpable: then use a
     * copy. */
    flags |= j->req->flags & NSBOX_FORK_COMMAND ? CLONE_VFORK : CLONE_VM | CLONE_CHILD_CLEARTID;
    j->command.tid = j->req->flags & NSBOX_FORK_COMMAND ? 0 : 1;
    j->b.step = NSBOX_STEP_COMMAND;
    __atomic_store_n(&j->command.is_made, 1, __ATOMIC_RELEASE); /* after its tid: see command_is_gone() */
    long pid = -ENOSYS;
    if (!(j->req->flags & NSBOX_FORK_COMMAND)) {
        const struct clone_more more = {.parent_tid = &j->res->pid, .child_tid = &j->command.tid};
        j->command.has_handlers = 0;
        pid = clone_by_args(flags | CLEAR_SIGHAND, j->stacks.command, &more, command, j);
    }
    if (pid < 0) { /* a filter that the caller is under may refuse clone3(2) */
        j->command.has_handlers = 1;
        pid = arch_clone(flags, j->stacks.command, &j->res->pid, (int *)(void *)&j->command.tid, command, j);
    }
    if (pid < 0)
        j->command.tid = 0;
    return pid < 0 ? (int)pid : 0;
}

/* Checks what the command waits for, where there never was an old root. */
static int no_other_root(struct builder *b)
{
    int gone = old_root_is_gone(b);
    return gone ? gone : -EXDEV;
}

/* Can there be processes of only one id? Then the map of the sandbox's own user namespace is one row, which ends in
 * " 1". */
static int has_one_id(const nsbox_request *req)
{
    const char *map = req->namespaces & CLONE_NEWUSER || req->template_plan ? req->uid_map : 0;
    size_t n = 0;
    while (map && map[n] && map[n] != '\n')
        n++;
    int is_last = n > 2 && (!map[n] || !map[n + 1]);
    return is_last && map[n - 1] == '1' && map[n - 2] == ' ';
}

/* Sends the init its byte before the command can run: from then on the caller may be killed, and we with it. The
 * init acts on it only when we have gone; in a parked sandbox, which holds the pipe longer, it acts at once. */
static void tell_init(struct job *j)
{
    uint32_t flags = j->req->flags;
    uint8_t byte = (is_parked(j->req) ? NSBOX_GO : 0) | (flags & NSBOX_STAY ? NSBOX_STAYS : 0) |
                   (flags & NSBOX_OUTLIVE ? NSBOX_OUTLIVES : 0) | (flags & NSBOX_MAP2_BY_HELPER ? NSBOX_IS_THIRD : 0) |
                   (flags & NSBOX_ADOPT_INIT ? NSBOX_IS_ADOPTED : 0) | (has_one_id(j->req) ? NSBOX_HAS_ONE_ID : 0);
    if (byte && has_init(j))
        sys_write(is_parked(j->req) ? j->req->go_fd : j->setup_pipe[1], &byte, 1);
}

/* Waits until the relay says that its side of the net namespace is ready. */
static int await_relay(struct job *j, int32_t *op)
{
    if (!wants_relay(j->req))
        return 0;
    TRY(&j->b, NSBOX_STEP_INIT, net_await(j));
    int ret = net_outcome(j, op);
    return ret < 0 ? ret : relay_await(j);
}

/* The rest, from the pivot on. The command may go on when the init is up and the old root has gone. (Until its exec
 * the init could be traced, as the caller's memory can be.) The command sees for itself that the root has gone:
 * umount2(2) has detached it long before it returns. */
static int close_up(struct job *j, int32_t *op)
{
    int fork = forks(j->req); /* it has a copy of our memory, so it comes when all is settled */
    int later = fork || has_no_command(j->req);
    if (is_warm(j->req))
        TRY(&j->b, NSBOX_STEP_STALE, no_other_root(&j->b));
    int ret = j->command.is_made || later ? 0 : create_command(j);
    if (ret < 0)
        return ret;
    if (j->req->flags & NSBOX_AS_INIT)
        remember_own(j);
    if (!(j->req->flags & NSBOX_PARK))
        tell_init(j);
    ret = limit_inotify(j); /* while the command prepares itself */
    if (ret < 0)
        return ret;
    if (init_is_up(j) && !wants_relay(j->req))
        set_gate(j, GATE_OPEN);
    int with_lo = net_leaves_lo(j);
    ret = is_warm(j->req) ? 0 : drop_old_root(&j->b);
    if (ret >= 0 && with_lo)
        ret = net_finish(j, op);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_INIT, init_await(j));
    if (j->req->flags & NSBOX_TEMPLATE)
        return kept_finish(j, op);
    ret = await_relay(j, op);
    if (ret < 0)
        return ret;
    if (j->req->flags & NSBOX_PARK)
        return park(j, op);
    set_gate(j, GATE_OPEN);
    if (!fork || is_warm(j->req))
        return fork ? create_command(j) : 0;
    ret = net_join(j, &j->b.step, op);
    return ret < 0 ? ret : create_command(j);
}

static int enter(struct job *j, int32_t *op)
{
    int ret = take_descriptors(j, op);
    if (ret >= 0)
        ret = die_with_caller(j);
    if (ret >= 0 && (is_warm(j->req) || j->req->flags & NSBOX_TEMPLATE))
        ret = kept_prepare(j);
    share_pipes(j->req);
    if (ret >= 0)
        ret = open_sources(j, op);
    if (ret >= 0)
        ret = take_kernel_ids(j);
    if (ret >= 0)
        ret = enter_namespaces(j);
    int is_void = j->req->user_fd >= 0 || j->req->kernel_uid; /* joining, and other ids, cleared the death signal */
    return ret < 0 || !is_void ? ret : die_with_caller(j);
}

static int create_command_early(struct job *j)
{
    if (is_warm(j->req) && !(j->req->flags & NSBOX_CLOSE_FDS)) /* it would inherit what is lifted just then */
        return 0;
    if (j->command.is_made || forks(j->req) || has_no_command(j->req) || !(precedes_init(j->req) || init_is_up(j)))
        return 0;
    return create_command(j);
}

/* Makes the command as early as possible: it prepares itself while the mounts are made. */
int after_op(struct builder *b)
{
    return create_command_early(job_of(b));
}

/* Starts what everything else needs: pid 1 where there is one, and the maps, if another process writes them. */
static int start_first(struct job *j, int32_t *op)
{
    int ret = 0;
    if (wants_relay(j->req))
        ret = relay_prepare(j);
    if (ret >= 0 && j->req->namespaces & CLONE_NEWPID)
        ret = init_start(j);
    else if (ret >= 0)
        j->init.is_up = 1;
    if (ret >= 0 && !(j->req->namespaces & CLONE_NEWPID))
        ret = net_without_init(j, op);
    if (ret >= 0)
        ret = net_join_first(j, op);
    if (ret < 0 || !(j->req->flags & NSBOX_HOLD_MAPS))
        return ret;
    j->b.step = NSBOX_STEP_INIT; /* all namespaces must exist when they are shown */
    ret = net_await(j);
    if (ret >= 0)
        ret = hold(j, 0, &j->b.step);
    if (ret >= 0) {
        __atomic_store_n(&j->maps.are_written, 1, __ATOMIC_RELEASE);
        sys_futex_wake(&j->maps.are_written);
    }
    return ret;
}

static int build(struct job *j, int32_t *op)
{
    int ret = enter(j, op);
    if (ret < 0)
        return ret;
    j->umask = (unsigned)sys_umask(0);
    ret = start_first(j, op);
    if (ret < 0)
        return ret;
    if (is_warm(j->req))
        ret = kept_check(j);
    else
        TRY(&j->b, NSBOX_STEP_ROOT, j->b.proc = sys_openat(AT_FDCWD, "/proc", O_PATH | O_DIRECTORY, 0));
    if (ret < 0)
        return ret;
    ret = j->req->flags & NSBOX_LIMIT_USERNS ? limit_userns(j) : 0;
    if (ret >= 0)
        ret = start_map2_helper(j);
    if (ret >= 0)
        ret = open_devnull(j);
    if (ret >= 0)
        ret = create_command_early(j);
    if (ret >= 0)
        ret = is_warm(j->req) ? renew_root(&j->b, op) : build_root(&j->b, op);
    if (ret >= 0 && !is_warm(j->req))
        ret = enter_root(&j->b);
    return ret < 0 ? ret : close_up(j, op);
}

/* Joins a parked sandbox, where everything exists except the command. If anything is wrong with it, a fresh sandbox
 * gets it right, or reports what it is. */
static int join_parked(struct job *j)
{
    int ret = open_devnull(j);
    if (ret >= 0)
        ret = here(&j->b);
    if (ret >= 0 && !forks(j->req))
        ret = create_command(j); /* it prepares itself meanwhile */
    if (ret >= 0)
        ret = kept_check(j);
    if (ret >= 0)
        ret = no_other_root(&j->b);
    if (ret < 0)
        return ret;
    set_gate(j, GATE_OPEN);
    if (forks(j->req) && (ret = create_command(j)) < 0)
        return ret;
    tell_init(j); /* the init looks for the command now */
    return 0;
}

static int enter_parked(struct job *j, int32_t *op)
{
    int ret = enter(j, op);
    if (ret < 0)
        return ret;
    j->umask = (unsigned)sys_umask(0);
    j->init.is_up = 1;
    ret = join_parked(j);
    j->b.step = NSBOX_STEP_STALE;
    return ret;
}

void mediator(void *arg)
{
    struct job *j = arg;
    int32_t op = -1;
    j->res->set_up_pid = sys_getpid();
    int ret = is_parked(j->req) ? enter_parked(j, &op) : build(j, &op);
    /* When the namespace's pid 1 has ended, so has the command, and alloc_pid() fails with ENOMEM. */
    if ((ret == -ENOMEM || ret == -ESRCH) && init_failed(j) < 0) {
        ret = init_failed(j);
        j->b.step = NSBOX_STEP_INIT;
    }
    if (j->b.step == NSBOX_STEP_INIT || j->b.step == NSBOX_STEP_COMMAND) /* no op's fault */
        op = -1;
    if (ret < 0) {
        report(j->res, ret, j->b.step, op); /* before the command can report anything else */
        set_gate(j, GATE_ABORT);
    }
    /* No process may go on in the caller's memory after us. */
    await_map2_helper(j);
    init_await_leave(j);
    sys_exit(0);
}

void plain_command(void *arg)
{
    struct job *j = arg;
    int32_t op = -1;
    j->umask = (unsigned)sys_umask(0);
    int ret = take_descriptors(j, &op);
    if (ret >= 0)
        ret = open_devnull(j);
    if (ret >= 0)
        command(j);
    report(j->res, ret, j->b.step, op);
    sys_exit(127);
}
