/* pid1.c: makes pid 1 of the sandbox, from the mediator.
 *
 * The init is created first, before any mount, so that the slow steps, the net namespace and its own exec, overlap
 * with the mediator's mounts. It shares the mediator's memory until its exec, and its descriptor table until shortly
 * before that.
 */
#include "process.h"
#include "job/images.h"

/* Puts the image into a sealed memfd. It is executable but not readable, which makes the kernel run it non-dumpable
 * from its first instruction (would_dump): the command can neither ptrace it nor read its /proc entries. */
static int image_memfd(void)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = sys_memfd_create("nsbox-init", flags | MFD_EXEC);
    if (fd == -EINVAL)
        fd = sys_memfd_create("nsbox-init", flags);
    if (fd < 0)
        return fd;
    int ret = write_all(fd, nsbox_init_image, nsbox_init_image_len);
    if (ret >= 0)
        ret = sys_fchmod(fd, 0100);
    if (ret >= 0)
        ret = sys_add_seals(fd, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    if (ret >= 0)
        return fd;
    sys_close(fd);
    return ret;
}

/* Where vm.memfd_noexec or a filter forbids a memfd: puts it into an unlinked file in a tmpfs of our own. */
static int image_file(struct builder *b)
{
    int mount = fs_make(b, "tmpfs", (const char *const[]){0}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (mount < 0)
        return mount;
    int fd = sys_openat(mount, "init", O_WRONLY | O_CREAT | O_EXCL, 0100);
    int ret = fd < 0 ? fd : write_all(fd, nsbox_init_image, nsbox_init_image_len);
    if (fd >= 0)
        sys_close(fd); /* a file open for writing can't be executed (ETXTBSY) */
    if (ret >= 0)
        ret = sys_openat(mount, "init", O_PATH | O_NOFOLLOW, 0);
    sys_close(mount);
    return ret;
}

/* The program of the init, to be executed by the same user. */
int open_image(struct builder *b)
{
    int fd = image_memfd();
    return fd == -EACCES || fd == -EPERM || fd == -ENOSYS ? image_file(b) : fd;
}

/* Has the set-up been given up? A mediator that has said that everything is ready may have ended by now. */
static int is_given_up(const struct job *j)
{
    int has_gone = __atomic_load_n(&j->mediator, __ATOMIC_ACQUIRE) == MEDIATOR_GONE;
    uint32_t gate = __atomic_load_n(&j->gate, __ATOMIC_ACQUIRE);
    return gate == GATE_ABORT || (has_gone && gate != GATE_OPEN) || caller_is_gone(j);
}

/* Goes on as the command, which is pid 1 here. So far it has shared the mediator's descriptors; when the gate opens
 * there will be no more. */
static _Noreturn void become_command(struct job *j, int ret)
{
    static const int64_t fifty_ms[2] = {0, 50000000};
    if (ret >= 0 && j->net.error < 0) { /* no other process looks at it */
        report(j->res, j->net.error, j->net.step, j->net.op);
        sys_exit(127);
    }
    for (uint32_t gate; ret >= 0 && (gate = __atomic_load_n(&j->gate, __ATOMIC_ACQUIRE)) != GATE_OPEN;) {
        if (is_given_up(j))
            sys_exit(127);
        sys_futex_wait(&j->gate, gate, fifty_ms);
    }
    if (ret >= 0)
        ret = sys_unshare(CLONE_FILES);
    if (ret >= 0)
        command(j);
    report(j->res, ret, NSBOX_STEP_COMMAND, -1);
    sys_exit(127);
}

/* The process that writes the maps gets our pid, and may write them only until we exec: from then on we are
 * non-dumpable. */
static void await_first_maps(struct job *j)
{
    static const int64_t fifty_ms[2] = {0, 50000000};
    while (j->req->flags & NSBOX_HOLD_MAPS && !__atomic_load_n(&j->maps.are_written, __ATOMIC_ACQUIRE)) {
        if (is_given_up(j))
            sys_exit(127);
        sys_futex_wait(&j->maps.are_written, 0, fifty_ms);
    }
}

/* Waits for the new root where others see us, in a pid namespace below another one. With our exec we belong to the
 * user namespace that owns our image. A process with power over that one could reach the old root, as
 * /proc/PID/root, for as long as it is ours (as with CVE-2016-9962). Until then we have the caller's memory, which
 * they may not look at. */
static void await_new_root(struct job *j)
{
    static const int64_t one_ms[2] = {0, 1000000};
    while (is_below(j->req)) {
        int is_last_look = __atomic_load_n(&j->mediator, __ATOMIC_ACQUIRE) == MEDIATOR_GONE || is_given_up(j);
        int gone = old_root_is_gone(&j->b);
        if (gone > 0)
            return;
        if (gone < 0 || is_last_look)
            sys_exit(127);
        sys_futex_wait(&j->gate, __atomic_load_n(&j->gate, __ATOMIC_ACQUIRE), one_ms);
    }
}

static void init_main(void *arg)
{
    struct job *j = arg;
    struct builder own = {.step = 0};
    /* "/", so that pivot_root(2) moves our working directory along with our root. */
    int ret = sys_chdir("/");
    if (ret >= 0 && j->req->flags & NSBOX_AS_INIT)
        ret = sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    if (!precedes_init(j->req)) {
        make_procs(j);
        if (publish(j, MADE_PROC)) /* the mediator goes first if it has the same processor */
            sys_sched_yield();
    }
    if (makes_net(j->req)) {
        j->net.error = make_net_early(j);
        publish(j, MADE_NET);
    }
    if (j->req->flags & NSBOX_AS_INIT)
        become_command(j, ret);
    await_first_maps(j);
    await_new_root(j);
    /* Up to here we share the mediator's table; from here on we have a copy. That comes before the image is opened:
     * the command, which the mediator may make just now, would inherit it, under a number that isn't known yet. */
    if (ret >= 0)
        ret = sys_unshare(CLONE_FILES);
    int image = ret < 0 ? ret : j->req->image_fd >= 0 ? j->req->image_fd : open_image(&own);
    j->init.error = image < 0 ? image : execute_init(j->lifeline, j->setup_pipe[0], j->init.says[1], image);
    sys_exit(127);
}

/* Clones pid 1 into our pid namespace, or that of our children. out: gets its number, or with CLONE_PIDFD a pidfd. */
static long clone_init(struct job *j, unsigned long flags, int *out)
{
    uint32_t *word = init_word(j);
    uint8_t *stack = j->req->flags & NSBOX_AS_INIT ? j->stacks.command : j->stacks.init;
    flags |= CLONE_VM | CLONE_FILES | CLONE_CHILD_CLEARTID | (flags & CLONE_PIDFD ? 0 : CLONE_PARENT_SETTID);
    *word = 1;
    long pid = arch_clone(flags, stack, out, (int *)(void *)word, init_main, j);
    if (pid < 0)
        *word = 0;
    return pid;
}

/* Keeps a pidfd and its inode. The caller opens its own pidfd when we are gone; the inode tells it that it is the
 * same process. */
static int hold_init_pidfd(struct job *j)
{
    struct sys_statx st;
    if (j->init.pidfd < 0)
        TRY(&j->b, NSBOX_STEP_INIT, j->init.pidfd = sys_pidfd_open(j->res->init_pid));
    TRY(&j->b, NSBOX_STEP_INIT, sys_statx(j->init.pidfd, "", AT_EMPTY_PATH, STATX_INO, &st));
    j->res->init_ino = st.stx_ino;
    return 0;
}

int init_start(struct job *j)
{
    uint32_t wishes = j->req->flags;
    if (!(wishes & NSBOX_PARK)) /* the pipe is the caller's then */
        TRY(&j->b, NSBOX_STEP_INIT, sys_pipe2(j->setup_pipe, SYS_O_CLOEXEC));
    unsigned long flags = wishes & (NSBOX_ADOPT_INIT | NSBOX_AS_INIT) ? CLONE_PARENT : 0;
    int *number = wishes & NSBOX_AS_INIT ? &j->res->pid : &j->res->init_pid;
    if (wishes & NSBOX_AS_INIT)
        j->command.is_made = j->init.is_up = 1;
    j->b.step = wishes & NSBOX_AS_INIT ? NSBOX_STEP_COMMAND : NSBOX_STEP_INIT;
    int ret = is_below(j->req) ? clone_below(j, flags, number, clone_init) : (int)clone_init(j, flags, number);
    if (ret < 0)
        return ret;
    if (!(wishes & NSBOX_AS_INIT)) {
        uint32_t cpu;
        if (makes_net(j->req) && !is_below(j->req) && sys_getcpu(&cpu) >= 0) /* it may have another number there */
            move_away(j->res->init_pid, cpu);
        return hold_init_pidfd(j);
    }
    sys_close(j->init.pidfd);
    j->init.pidfd = -1;
    return 0;
}

static void procs_maker(void *arg)
{
    make_procs(arg);
    sys_exit(0);
}

/* Makes procfs of a joined pid namespace: our children are in it, but we aren't. */
static int procs_of_joined(struct job *j)
{
    if (j->parallel.n_procs)
        return 0;
    int pid = (int)clone_sharer(&j->map_program, CLONE_VFORK | CLONE_FILES, j->stacks.init, procs_maker, j);
    return pid < 0 ? pid : sys_waitid(P_PID, pid, 0, WEXITED | __WALL);
}

int init_new_proc(struct builder *b)
{
    struct job *j = job_of(b);
    int ret = j->req->namespaces & CLONE_NEWPID ? await_made(j, MADE_PROC) : procs_of_joined(j);
    if (ret < 0)
        return ret;
    if (j->parallel.n_procs == MAX_PROCS)
        return -EBUSY;
    int fd = j->parallel.procs[j->parallel.n_procs];
    j->parallel.procs[j->parallel.n_procs++] = -EBUSY; /* a detached mount can be attached only once */
    return fd;
}

/* 1 when the init runs its own image, in its own memory, and is about to sleep; else 0. */
int init_is_up(struct job *j)
{
    nsbox_word word;
    if (j->init.is_up || __atomic_load_n(&j->init.tid, __ATOMIC_ACQUIRE)) /* it hasn't left our memory yet */
        return j->init.is_up;
    j->init.is_up = sys_read(j->init.says[0], &word, sizeof word) == sizeof word;
    return j->init.is_up;
}

/* Is it dead? Its pidfd tells, unless it waits for the command to be reaped, which is then the caller's zombie. */
static int init_is_gone(struct job *j)
{
    static const int64_t at_once[2] = {0, 0};
    struct pollfd fd = {.fd = j->init.pidfd, .events = POLLIN};
    if (__atomic_load_n(&j->init.tid, __ATOMIC_ACQUIRE))
        return 0;
    if (j->init.error < 0 || (j->command.is_made && !__atomic_load_n(&j->command.tid, __ATOMIC_ACQUIRE)))
        return 1;
    return sys_ppoll(&fd, 1, at_once) > 0;
}

/* Returns why it ended before it was up; 0 if it didn't. */
int init_failed(const struct job *j)
{
    return has_init(j) && !__atomic_load_n(&j->init.tid, __ATOMIC_ACQUIRE) ? j->init.error : 0;
}

/* Returns when it is up, or is gone. */
int init_await(struct job *j)
{
    static const int64_t ten_ms[2] = {0, 10000000};
    while (!init_is_up(j)) {
        int gone = init_is_gone(j);
        if (gone && !init_is_up(j))
            return j->init.error < 0 ? j->init.error : -ESRCH;
        struct pollfd fd = {.fd = j->init.says[0], .events = POLLIN};
        int ret = sys_ppoll(&fd, 1, ten_ms);
        if (ret < 0 && ret != -EINTR)
            return ret;
    }
    return 0;
}

/* Returns when it no longer uses our memory, if it ever did. */
void init_await_leave(struct job *j)
{
    static const int64_t at_once[2] = {0, 0};
    struct pollfd fd = {.fd = j->init.pidfd, .events = POLLIN};
    while (!await_exec(&j->init.tid))
        if (j->init.is_up || sys_ppoll(&fd, 1, at_once) > 0)
            return;
}
