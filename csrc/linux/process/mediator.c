/* mediator.c: the chronology of the mediator. When something happens is decided here; how, elsewhere. */
#include "job/job.h"

/* PR_SET_PDEATHSIG is right for the mediator alone: the thread that it watches is the one that waits for us. All others
 * are tied to the caller by the init's pidfd of it. */
static int die_with_caller(struct job *j)
{
    TRY(&j->b, NSBOX_STEP_LIFELINE, sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0));
    return sys_getppid() == j->caller ? 0 : -ESRCH;
}

static int is_open(const struct job *j, int fd)
{
    int is_ours =
        fd == j->lifeline || fd == j->said[0] || fd == j->said[1] || fd == j->setup_pipe[0] || fd == j->setup_pipe[1];
    for (uint32_t i = 0; i < j->req->n_idmaps; i++)
        is_ours |= fd == j->req->idmaps[i].userns_fd;
    return fd < 0 ? 0 : is_ours ? -EBADF : sys_get_fd_flags(fd);
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
    const int32_t joined[] = {r->user_fd, r->user2_fd, r->pid_fd, r->mnt_fd,
                              r->null_fd, r->park_fd,  r->go_fd,  r->relay_fd};
    for (unsigned i = 0; i < sizeof joined / sizeof joined[0]; i++)
        TRY(&j->b, NSBOX_STEP_JOIN, is_open(j, joined[i]));
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
    lower(&least, j->b.proc, from); /* these only in the command's table */
    lower(&least, j->devnull, from);
    lower(&least, r->stdin_fd, from);
    lower(&least, r->stdout_fd, from);
    lower(&least, r->stderr_fd, from);
    for (uint32_t i = 0; i < r->n_idmaps; i++)
        lower(&least, r->idmaps[i].userns_fd, from);
    const int32_t given[] = {r->user_fd, r->user2_fd, r->pid_fd, r->hold_fd,       r->report_fd,     r->mnt_fd,
                             r->null_fd, r->park_fd,  r->go_fd,  j->setup_pipe[0], j->setup_pipe[1], r->relay_fd};
    for (unsigned i = 0; i < sizeof given / sizeof given[0]; i++)
        lower(&least, given[i], from);
    for (uint32_t i = 0; i < r->n_pass_fds; i++)
        lower(&least, r->pass_fds[i], from);
    for (uint32_t i = 0, n = plan_nops(r->plan); i < n; i++)
        if (plan_op(r->plan, i)->flags & NSBOX_FROM_FD)
            lower(&least, plan_op(r->plan, i)->fd, from);
    return least;
}

/* Our table is a copy, but its size is limited too: what the command won't get makes room for ours. The command then
 * closes what it has of ours. */
int close_unneeded(struct job *j)
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
    if (!wants_devnull(r) && !(r->flags & NSBOX_TEMPLATE))
        return 0;
    j->devnull = r->flags & NSBOX_PLAIN ? sys_openat(AT_FDCWD, "/dev/null", O_RDWR, 0)
                 : is_warm(r)           ? fs_reopen(&j->b, r->null_fd, O_RDWR)
                                        : fs_devnull(&j->b);
    TRY(&j->b, NSBOX_STEP_STDIO, j->devnull);
    return 0;
}

/* As they are in the command's table; they change in ours. */
static void remember_own(struct job *j)
{
    const int own[] = {j->b.root, j->b.base, j->b.scratch, j->b.masked, j->b.parent};
    enum { OTHERS = sizeof own / sizeof own[0] };
    _Static_assert(OTHERS + MAX_PROCS == sizeof j->own / sizeof j->own[0], "all have a place");
    for (unsigned i = 0; i < OTHERS + MAX_PROCS; i++)
        j->own[i] = i < OTHERS ? own[i] : j->procs[i - OTHERS];
}

int create_command(struct job *j)
{
    remember_own(j);
    unsigned long flags = CLONE_PARENT | CLONE_PARENT_SETTID;
    if (precedes_init(j->req)) { /* for help_set_up() */
        flags |= CLONE_FILES;
        sys_getcpu(&j->cpu);
    }
    /* setresuid(2) to another kernel id would make the shared memory, so the caller, non-dumpable: then a copy. */
    flags |= j->req->flags & NSBOX_FORK_COMMAND ? CLONE_VFORK : CLONE_VM | CLONE_CHILD_CLEARTID;
    j->command_tid = j->req->flags & NSBOX_FORK_COMMAND ? 0 : 1;
    j->b.step = NSBOX_STEP_COMMAND;
    __atomic_store_n(&j->command_made, 1, __ATOMIC_RELEASE); /* after its tid: see command_is_gone() */
    long pid = -ENOSYS;
    if (!(j->req->flags & NSBOX_FORK_COMMAND)) {
        const struct clone_more more = {.parent_tid = &j->res->pid, .child_tid = &j->command_tid};
        j->has_handlers = 0;
        pid = clone_by_args(flags | CLEAR_SIGHAND, j->command_stack, &more, command, j);
    }
    if (pid < 0) { /* a filter of the caller's may refuse clone3(2) */
        j->has_handlers = 1;
        pid = arch_clone(flags, j->command_stack, &j->res->pid, (int *)(void *)&j->command_tid, command, j);
    }
    if (pid < 0)
        j->command_tid = 0;
    return pid < 0 ? (int)pid : 0;
}

/* What the command waits for, where there never was an old root. */
static int no_other_root(struct builder *b)
{
    int gone = old_root_is_gone(b);
    return gone ? gone : -EXDEV;
}

/* Before the command can run: then the caller may be killed as it likes, and we with it. The init doesn't act on it before
 * we have gone, but for that of a parked sandbox, which holds the pipe longer. */
static void tell_init(struct job *j)
{
    uint32_t flags = j->req->flags;
    uint8_t told = (is_parked(j->req) ? NSBOX_GO : 0) | (flags & NSBOX_STAY ? NSBOX_STAYS : 0) |
                   (flags & NSBOX_OUTLIVE ? NSBOX_OUTLIVES : 0) | (flags & NSBOX_MAP2_BY_HELPER ? NSBOX_IS_THIRD : 0) |
                   (flags & NSBOX_ADOPT_INIT ? NSBOX_IS_ADOPTED : 0);
    if (told && has_init(j))
        sys_write(is_parked(j->req) ? j->req->go_fd : j->setup_pipe[1], &told, 1);
}

/* From the pivot on. The command may go on when the init is up (until its exec it could be traced, as the caller's memory
 * can be) and the old root has gone. The latter it sees for itself: umount2(2) has detached it long before it returns. */
static int close_up(struct job *j, int32_t *op)
{
    int fork = forks(j->req); /* with a copy of our memory: it comes when all is settled */
    int later = fork || has_no_command(j->req);
    if (is_warm(j->req))
        TRY(&j->b, NSBOX_STEP_STALE, no_other_root(&j->b));
    int ret = j->command_made || later ? 0 : create_command(j);
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
    int with_lo = init_leaves_lo(j);
    ret = is_warm(j->req) ? 0 : drop_old_root(&j->b);
    if (ret >= 0 && with_lo)
        ret = init_finish_net(j, op);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_INIT, init_await(j));
    if (j->req->flags & NSBOX_TEMPLATE)
        return template_finish(j, op);
    ret = relay_await(j, op);
    if (ret < 0)
        return ret;
    if (j->req->flags & NSBOX_PARK)
        return park(j, op);
    set_gate(j, GATE_OPEN);
    if (!fork || is_warm(j->req))
        return fork ? create_command(j) : 0;
    ret = init_join_net(j, &j->b.step, op);
    return ret < 0 ? ret : create_command(j);
}

static int take_descriptors(struct job *j, int32_t *op)
{
    int ret = check_fds(j, op);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_FDS, close_unneeded(j));
    TRY(&j->b, NSBOX_STEP_STDIO, fill_standard_fds(j));
    return 0;
}

static int enter(struct job *j, int32_t *op)
{
    int ret = take_descriptors(j, op);
    if (ret >= 0)
        ret = die_with_caller(j);
    if (ret >= 0 && (is_warm(j->req) || j->req->flags & NSBOX_TEMPLATE))
        ret = template_prepare(j);
    share_pipes(j->req);
    if (ret >= 0)
        ret = open_sources(j, op);
    if (ret >= 0)
        ret = take_kernel_ids(j);
    if (ret >= 0)
        ret = enter_namespaces(j);
    int is_void = j->req->user_fd >= 0 || j->req->kernel_uid; /* the death signal, by joining and by other ids */
    return ret < 0 || !is_void ? ret : die_with_caller(j);
}

static int create_command_early(struct job *j)
{
    if (is_warm(j->req) && !(j->req->flags & NSBOX_CLOSE_FDS)) /* it would have what is lifted just then */
        return 0;
    if (j->command_made || forks(j->req) || has_no_command(j->req) || !(precedes_init(j->req) || init_is_up(j)))
        return 0;
    return create_command(j);
}

/* As soon as it can be: it prepares itself beside the mounts. */
int after_op(struct builder *b)
{
    return create_command_early(job_of(b));
}

/* What everything else needs: pid 1 where there is one, and the maps, if somebody else writes them. */
static int start_first(struct job *j, int32_t *op)
{
    int ret = 0;
    if (wants_relay(j->req))
        ret = relay_prepare(j);
    if (ret >= 0 && j->req->namespaces & CLONE_NEWPID)
        ret = init_start(j);
    else if (ret >= 0)
        j->init_up = 1;
    if (ret >= 0 && !(j->req->namespaces & CLONE_NEWPID))
        ret = net_without_init(j, op);
    if (ret >= 0)
        ret = init_join_net_first(j, op);
    if (ret < 0 || !(j->req->flags & NSBOX_HOLD_MAPS))
        return ret;
    j->b.step = NSBOX_STEP_INIT; /* all namespaces are to be there when they are told */
    ret = init_await_net(j);
    if (ret >= 0)
        ret = hold(j, 0, &j->b.step);
    if (ret >= 0) {
        __atomic_store_n(&j->has_maps, 1, __ATOMIC_RELEASE);
        sys_futex_wake(&j->has_maps);
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
        ret = template_check(j);
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

/* All is there but the command. Whatever is wrong with it, a sandbox that is made anew has it right, or tells. */
static int join_parked(struct job *j)
{
    int ret = open_devnull(j);
    if (ret >= 0)
        ret = here(&j->b);
    if (ret >= 0 && !forks(j->req))
        ret = create_command(j); /* which prepares itself meanwhile */
    if (ret >= 0)
        ret = template_check(j);
    if (ret >= 0)
        ret = no_other_root(&j->b);
    if (ret < 0)
        return ret;
    set_gate(j, GATE_OPEN);
    if (forks(j->req) && (ret = create_command(j)) < 0)
        return ret;
    tell_init(j); /* who looks for the command now */
    return 0;
}

static int enter_parked(struct job *j, int32_t *op)
{
    int ret = enter(j, op);
    if (ret < 0)
        return ret;
    j->umask = (unsigned)sys_umask(0);
    j->init_up = 1;
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
    /* When the namespace's pid 1 has ended, so has the command, and alloc_pid() says ENOMEM. */
    if ((ret == -ENOMEM || ret == -ESRCH) && init_failed(j) < 0) {
        ret = init_failed(j);
        j->b.step = NSBOX_STEP_INIT;
    }
    if (j->b.step == NSBOX_STEP_INIT || j->b.step == NSBOX_STEP_COMMAND) /* no op's fault */
        op = -1;
    if (ret < 0) {
        report(j->res, ret, j->b.step, op); /* before the command can say anything else */
        set_gate(j, GATE_ABORT);
    }
    /* Nobody may go on in the caller's memory after us. */
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
