/* parallel.c: the file systems that are made in parallel with the mounts, by the first process in the new pid
 * namespace.
 *
 * A procfs shows the pid namespace of the process that opens it, so the mediator, which is in the caller's, can't
 * make it. The kernel leaves a new process on its maker's processor, behind it, and puts the next one elsewhere. So
 * a command that is made right after the init runs first. It makes the procfs, and whatever else the mediator hasn't
 * reached yet; then it moves the init to a processor where the mediator isn't. Otherwise the init makes the procfs,
 * and the mediator everything else.
 */
#include "job.h"

enum share_state { SHARE_FREE, SHARE_TAKEN, SHARE_DONE };

/* Is the command made before the mounts? Not where the init makes a net namespace: that is work enough for another
 * processor. Nor without CLOSE_FDS: the descriptors of both, which come and go in the mediator's table up to then,
 * must be closed before the command looks paths up. */
int precedes_init(const nsbox_request *r)
{
    int has_own_init = r->namespaces & CLONE_NEWPID && !(r->flags & NSBOX_AS_INIT) && !is_below(r);
    return has_own_init && r->flags & NSBOX_CLOSE_FDS && !is_warm(r) && !makes_net(r) && !forks(r) &&
           !has_no_command(r);
}

/* Announces what is made. True if a process was waiting for it. */
int publish(struct job *j, enum made what)
{
    __atomic_store_n(&j->parallel.made, what, __ATOMIC_RELEASE);
    return sys_futex_wake(&j->parallel.made) > 0;
}

/* Makes one procfs of this process's pid namespace for each op that mounts one. */
void make_procs(struct job *j)
{
    struct builder own = {.step = 0};
    unsigned made = 0;
    for (uint32_t i = 0, n = plan_nops(j->req->plan); i < n && made < MAX_PROCS; i++)
        if (plan_op(j->req->plan, i)->code == NSBOX_OP_PROC)
            j->parallel.procs[made++] = fs_of(&own, plan_op(j->req->plan, i));
    /* Open it before the mediator, which closes the mount, knows of it. */
    if (made && j->parallel.procs[0] >= 0 && makes_net(j->req))
        j->net.settings = sys_openat(j->parallel.procs[0], "sys/net", O_PATH | O_DIRECTORY | O_NOFOLLOW, 0);
}

static int is_shared(const nsbox_op *op)
{
    return op->code == NSBOX_OP_TMPFS || op->code == NSBOX_OP_DEVPTS || op->code == NSBOX_OP_MQUEUE;
}

/* Is this one for us to make? True for the first process that asks. */
static int takes(struct share *s)
{
    uint32_t free = SHARE_FREE;
    return __atomic_compare_exchange_n(&s->state, &free, SHARE_TAKEN, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static void make_others(struct job *j)
{
    struct builder own = {.step = 0};
    struct share *s = j->parallel.shares;
    for (uint32_t i = 0, n = plan_nops(j->req->plan); i < n && s < j->parallel.shares + MAX_SHARES; i++) {
        if (!is_shared(plan_op(j->req->plan, i)))
            continue;
        if (takes(s)) {
            s->fd = fs_of(&own, plan_op(j->req->plan, i));
            __atomic_store_n(&s->state, SHARE_DONE, __ATOMIC_RELEASE);
            sys_futex_wake(&s->state);
            if (s->fd < 0)
                return;
        }
        s++;
    }
}

/* The command's part, when it begins: first with the mediator's descriptors, then with a copy of them. */
int help_set_up(struct job *j)
{
    if (!precedes_init(j->req))
        return 0;
    make_procs(j);
    publish(j, MADE_PROC);
    make_others(j);
    move_away(1, j->parallel.cpu);
    int ret = sys_unshare(CLONE_FILES);
    /* Close what the mediator had open just then before we wait for the root: it may be a file open for writing, and
     * op_remount_ro() would wait for us. */
    return ret < 0 || !needs_root_first(j->req) ? ret : close_unneeded(j);
}

static int is_commands(const struct job *j, enum made what)
{
    return what == MADE_PROC && precedes_init(j->req);
}

/* Has the process that makes `what` for us ended? Before there is a command, the command's word says nothing. */
static int maker_is_gone(const struct job *j, enum made what)
{
    if (has_init(j) && !is_commands(j, what))
        return !__atomic_load_n(&j->init.tid, __ATOMIC_ACQUIRE);
    return __atomic_load_n(&j->command.is_made, __ATOMIC_ACQUIRE) &&
           !__atomic_load_n(&j->command.tid, __ATOMIC_ACQUIRE);
}

/* Has the command ended? For the mediator, when the word couldn't be cleared: see await_exec(). */
static int command_has_ended(const struct job *j)
{
    static const int64_t at_once[2] = {0, 0};
    struct pollfd fd = {.fd = sys_pidfd_open(j->res->pid), .events = POLLIN};
    int ended = fd.fd == -ESRCH || (fd.fd >= 0 && sys_ppoll(&fd, 1, at_once) > 0);
    sys_close(fd.fd);
    return ended;
}

static const int64_t fifty_ms[2] = {0, 50000000};

/* Sleeps until `what` is made, or its maker is gone. The time limit is for a maker that was killed before it could
 * wake us: CLONE_CHILD_CLEARTID then clears another word, and only that one's waiters are woken. */
int await_made(struct job *j, enum made what)
{
    for (int ended = 0;;) {
        int gone = ended || maker_is_gone(j, what);
        uint32_t now = __atomic_load_n(&j->parallel.made, __ATOMIC_ACQUIRE);
        if (now >= (uint32_t)what)
            return 0;
        if (gone)
            return -ESRCH;
        if (sys_futex_wait(&j->parallel.made, now, fifty_ms) == -ETIMEDOUT && is_commands(j, what))
            ended = command_has_ended(j);
    }
}

static int await_share(struct job *j, struct share *s)
{
    for (int ended = 0;;) {
        int gone = ended || maker_is_gone(j, MADE_PROC);
        if (__atomic_load_n(&s->state, __ATOMIC_ACQUIRE) == SHARE_DONE)
            return 0;
        if (gone)
            return -ESRCH;
        if (sys_futex_wait(&s->state, SHARE_TAKEN, fifty_ms) == -ETIMEDOUT)
            ended = command_has_ended(j);
    }
}

/* Returns a new file system for the op, mounted nowhere: the command's, or our own if the command hasn't begun it,
 * or couldn't make it. */
int new_fs(struct builder *b, const nsbox_op *op)
{
    struct job *j = job_of(b);
    unsigned n = j->parallel.n_shares++;
    if (!precedes_init(j->req) || n >= MAX_SHARES || takes(&j->parallel.shares[n]))
        return fs_of(b, op);
    TRY(b, NSBOX_STEP_COMMAND, await_share(j, &j->parallel.shares[n]));
    return j->parallel.shares[n].fd >= 0 ? j->parallel.shares[n].fd : fs_of(b, op);
}

/* Moves a process that waits behind the one on that processor: if there is another processor, it then runs at once.
 * We take this one out of its affinity, which moves it, and give it back; where that is refused, it runs later. The
 * command isn't affected. A mask that was set stays below what a later cpuset allows (sched_setaffinity(2)), which
 * doesn't matter to an init that sleeps. */
void move_away(int pid, uint32_t cpu)
{
    uint64_t mask[16]; /* 1024 processors; the kernel refuses to read fewer than it has */
    int size = sys_sched_getaffinity(0, sizeof mask, mask);
    if (size <= 0 || cpu / 8 >= (uint32_t)size)
        return;
    uint64_t one = mask[cpu / 64] & 1ULL << cpu % 64;
    mask[cpu / 64] &= ~one;
    int ret = sys_sched_setaffinity(pid, (size_t)size, mask); /* EINVAL: there is no other processor */
    mask[cpu / 64] |= one;
    if (ret >= 0 && one)
        sys_sched_setaffinity(pid, (size_t)size, mask);
}
