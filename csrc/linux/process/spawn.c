/* spawn.c: the caller's side of one spawn: before the clone, and after it. */
#include "process.h"

enum { JOB_BYTES = (sizeof(struct job) + 63) & ~63U };

static uint64_t own_bytes(uint32_t nops)
{
    /* Devices (one for each op that makes a file system, the base and scratch), anchors, then sources; aligned as the
     * stacks are. */
    return (((uint64_t)nops + 4) * (sizeof(uint64_t) + sizeof(struct anchor)) + nops * sizeof(int) + 63) & ~63ULL;
}

uint64_t nsbox_arena_size(uint32_t nops)
{
    return own_bytes(nops) + MEDIATOR_STACK + INIT_STACK + COMMAND_STACK + HELPER_STACK + JOB_BYTES;
}

/* Keeps both ends, which may have numbers below 3. 0 or -errno. */
static int keep_ends(int ends[2], const int fds[2])
{
    ends[0] = move_high(fds[0]);
    ends[1] = move_high(fds[1]);
    return ends[0] < 0 ? ends[0] : ends[1] < 0 ? ends[1] : 0;
}

static int open_pipe(int ends[2], int flags)
{
    int fds[2];
    int ret = sys_pipe2(fds, SYS_O_CLOEXEC | flags);
    if (ret < 0)
        return ret;
    /* One page is enough: an ordinary user may have only so many larger pipes (pipe-user-pages-soft, pipe(7)). If
     * this is refused, nothing else changes. */
    sys_set_pipe_size(fds[0], 4096);
    return keep_ends(ends, fds);
}

static int open_pair(int ends[2])
{
    int fds[2];
    int ret = sys_packet_pair(fds);
    return ret < 0 ? ret : keep_ends(ends, fds);
}

/* Starts the mediator, and returns when it has gone. Its exit_signal is 0, so no SIGCHLD comes, and no waitpid(-1)
 * elsewhere in the program sees it. */
static void start_mediator(struct job *j)
{
    unsigned long flags = CLONE_VM | CLONE_VFORK | CLONE_CHILD_CLEARTID;
    const struct clone_more more = {.cgroup = j->req->cgroup_fd, .child_tid = &j->mediator};
    j->mediator = MEDIATOR_WORKS;
    long pid = more.cgroup >= 0 ? clone_by_args(flags | INTO_CGROUP, j->stacks.mediator, &more, mediator, j)
                                : arch_clone(flags, j->stacks.mediator, 0, (int *)(void *)&j->mediator, mediator, j);
    int killed = pid < 0 ? 0 : mediator_killed((int)pid);
    restore_dumpable(j, (int)pid);
    if (pid < 0)
        report(j->res, (int)pid, NSBOX_STEP_CLONE, -1);
    watch_command(j);
    if (is_below(j->req) && j->req->flags & (NSBOX_ADOPT_INIT | NSBOX_AS_INIT))
        reap(&j->map_program);
    if (killed)
        report(j->res, -EINTR, NSBOX_STEP_KILLED, -1);
    else if (j->res->pid > 0)
        while (!await_exec(&j->command.tid) && !is_dead(j->res->pid))
            continue;
}

/* Starts a plain command, and returns when it has executed its program, or ended. There is no mediator: there is
 * nothing to build, and in a sandbox a filter may refuse the CLONE_PARENT that one needs. The exit_signal is 0 here
 * too: it becomes SIGCHLD at the exec. */
static void start_plain(struct job *j)
{
    unsigned long flags = CLONE_VFORK | (j->req->flags & NSBOX_FORK_COMMAND ? 0 : CLONE_VM);
    unsigned long watched = j->command.is_watched ? CLONE_PIDFD : 0;
    long pid = j->req->cgroup_fd >= 0
                   ? clone_into_cgroup(flags, j->stacks.command, j->req->cgroup_fd, plain_command, j)
                   : arch_clone(flags | watched, j->stacks.command, &j->res->pidfd, 0, plain_command, j);
    j->res->pid = pid < 0 ? 0 : (int)pid;
    if (pid > 0 && watched)
        j->res->pidfd = j->res->pidfd < 0 ? open_pidfd(j->res->pid) : move_high(j->res->pidfd);
    if (pid < 0)
        report(j->res, (int)pid, NSBOX_STEP_CLONE, -1);
}

/* Returns 0, or 1 in the command. */
static int start(struct job *j)
{
    sys_sigset all = ~(sys_sigset)0;
    sys_sigprocmask(SIG_SETMASK, &all, &j->mask);
    if (j->req->flags & NSBOX_PREEXEC && arch_save(&j->context)) {
        j->req->after_fork();
        return 1;
    }
    if (j->req->flags & NSBOX_PLAIN)
        start_plain(j);
    else
        start_mediator(j);
    sys_close(j->lifeline);
    sys_close(j->init.says[1]);
    sys_close(j->parked_pipe[0]);
    sys_close(j->kept_pair[1]);
    int with_init = !(j->req->flags & NSBOX_PLAIN) && !is_parked(j->req);
    int ret = j->res->error || !has_no_command(j->req) ? 0 : kept_receive(j);
    if (ret < 0)
        report(j->res, ret, NSBOX_STEP_HOLD, -1);
    sys_close(j->kept_pair[0]);
    if (j->res->error)
        clean_up(j);
    else if (with_init)
        hold_init(j);
    with_init = with_init && !j->res->error && has_init(j);
    if (with_init)
        j->res->init_says = j->init.says[0];
    else
        sys_close(j->init.says[0]);
    if (with_init && j->parked_pipe[1] >= 0)
        j->res->go_fd = j->parked_pipe[1];
    else
        sys_close(j->parked_pipe[1]);
    sys_sigprocmask(SIG_SETMASK, &j->mask, 0);
    return 0;
}

/* The job isn't on the stack: a command with PREEXEC needs it after its nsbox_spawn() has returned. */
static struct job *job_in(const nsbox_request *req)
{
    return (struct job *)(void *)(req->arena + own_bytes(plan_nops(req->plan)));
}

/* Neither an initializer nor a loop that the compiler recognizes: it would make either a call of memset. */
static void clear(void *what, size_t n)
{
    volatile any_word *words = what;
    for (size_t i = 0; i < n / sizeof *words; i++)
        words[i] = 0;
}

static void set_up(struct job *j, const nsbox_request *req, uint32_t nops)
{
    clear(j, sizeof *j);
    uint8_t *stacks = (uint8_t *)j + JOB_BYTES;
    j->req = req;
    j->res = req->result;
    j->stacks.mediator = stacks + MEDIATOR_STACK;
    j->stacks.init = j->stacks.mediator + INIT_STACK;
    j->stacks.command = j->stacks.init + COMMAND_STACK;
    j->stacks.helper = j->stacks.command + HELPER_STACK;
    j->caller = sys_getpid();
    j->lifeline = j->init.says[0] = j->init.says[1] = j->setup_pipe[0] = j->setup_pipe[1] = -1;
    j->kept_pair[0] = j->kept_pair[1] = j->net.answer[0] = j->net.answer[1] = -1;
    j->command.has_handlers = 1;
    j->command.devnull = j->init.pidfd = j->userns2.fd = j->net.fd = j->net.settings = -1;
    for (unsigned i = 0; i < MAX_PROCS; i++)
        j->parallel.procs[i] = -ESRCH;
    struct builder *b = &j->b;
    j->command.is_watched = !has_no_command(req) && !(req->flags & NSBOX_AS_INIT) && ignores_children();
    b->plan = req->plan;
    b->root = b->base = b->scratch = b->masked = b->proc = b->parent = -1;
    b->stdout_fd = req->stdout_fd == -1 ? 1 : req->stdout_fd;
    b->own = (uint64_t *)(void *)req->arena;
    b->max_own = nops + 4;
    b->anchors = (struct anchor *)(void *)(b->own + b->max_own);
    b->early = (int *)(void *)(b->anchors + b->max_own);
    b->new_proc = init_new_proc;
    b->new_fs = new_fs;
    b->after_op = after_op;
    b->host_writes = (req->flags & NSBOX_HOST_WRITES) != 0;
    b->detail = req->result->detail;
    b->lifted = j->lifted;
    b->stamps = req->flags & NSBOX_TEMPLATE ? req->stamps : 0;
    b->kept_plan = req->template_plan;
    b->kept_stamps = req->template_plan ? req->stamps : 0;
    b->park_stamps = req->flags & NSBOX_PARK ? req->park_stamps : 0;
}
_Static_assert(sizeof(struct job) % sizeof(uint64_t) == 0, "cleared by words");
_Static_assert(sizeof(nsbox_result) % sizeof(uint64_t) == 0, "cleared by words");

int nsbox_spawn(const nsbox_request *req)
{
    nsbox_result *res = req->result;
    clear(res, sizeof *res);
    res->op = res->init_pidfd = res->init_says = res->go_fd = res->pidfd = -1;
    res->user_fd = res->mnt_fd = res->null_fd = res->image_fd = -1;
    int32_t bad;
    if (nsbox_plan_check(req->plan, req->plan_len, &bad) < 0) {
        report(res, -EINVAL, NSBOX_STEP_PLAN, bad);
        return 0;
    }
    /* In the user namespace that owns the mounts, these would be power over them. */
    if (req->caps && req->caps->permitted && !req->uid_map2) {
        report(res, -EINVAL, NSBOX_STEP_CAPS, -1);
        return 0;
    }
    if (is_warm(req) && ((req->mnt_fd < 0) == (req->park_fd < 0) || (is_parked(req) && req->user2_fd < 0) ||
                         !req->uid_map2 || !req->gid_map2)) {
        report(res, -EINVAL, NSBOX_STEP_STALE, -1);
        return 0;
    }
    if (is_warm(req) && nsbox_plan_check(req->template_plan, req->template_plan_len, &bad) < 0) {
        report(res, -EINVAL, NSBOX_STEP_STALE, bad);
        return 0;
    }
    if (wants_relay(req) && !(makes_net(req) && req->namespaces & CLONE_NEWPID)) {
        report(res, -EINVAL, NSBOX_STEP_NET, -1);
        return 0;
    }
    uint32_t nops = plan_nops(req->plan);
    if (req->arena_len < nsbox_arena_size(nops) || (uintptr_t)req->arena % 64) {
        report(res, -EINVAL, NSBOX_STEP_PLAN, -1);
        return 0;
    }
    struct job *j = job_in(req);
    set_up(j, req, nops);
    /* The init reports through it. Neither end blocks: what it writes fits in, and a reader has polled. */
    int ret = is_parked(req) ? 0 : open_pipe(j->init.says, O_NONBLOCK);
    /* The end of this pipe tells the init that the set-up is over. The caller has the pipe of a parked one. */
    if (ret >= 0 && req->flags & NSBOX_PARK)
        ret = open_pipe(j->setup_pipe, 0);
    j->parked_pipe[0] = j->setup_pipe[0];
    j->parked_pipe[1] = j->setup_pipe[1];
    if (ret >= 0 && has_no_command(req))
        ret = open_pair(j->kept_pair);
    if (ret >= 0)
        ret = j->lifeline = open_pidfd(j->caller);
    if (ret >= 0)
        return start(j);
    report(res, ret, NSBOX_STEP_LIFELINE, -1);
    for (int i = 0; i < 2; i++) {
        sys_close(j->init.says[i]);
        sys_close(j->parked_pipe[i]);
        sys_close(j->kept_pair[i]);
    }
    return 0;
}

void nsbox_preexec_done(const nsbox_request *req, int32_t failed)
{
    command_after_preexec(job_in(req), failed);
}
