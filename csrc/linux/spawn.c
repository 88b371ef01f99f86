/* spawn.c: the caller's side of one spawn: before the clone, and after it. */
#include "child.h"

#if defined(__GNUC__)
#define EXPORT __attribute__((visibility("hidden")))
#endif

static uint64_t own_bytes(uint32_t nops)
{
    /* One device for each op that makes a file system, the base and scratch; rounded to the stacks' alignment. */
    return (((uint64_t)nops + 4) * sizeof(uint64_t) + 63) & ~63ULL;
}

uint64_t nsbox_arena_size(uint32_t nops)
{
    return own_bytes(nops) + MEDIATOR_STACK + INIT_STACK + COMMAND_STACK;
}

const uint8_t *nsbox_init_bytes(void)
{
    return nsbox_init_image;
}

uint64_t nsbox_init_size(void)
{
    return nsbox_init_image_len;
}

/* 1: gone (and reaped, if it was ours), 0: not within the time, -errno. */
int nsbox_pidfd_wait(int pidfd, int timeout_ms)
{
    struct pollfd fd = {.fd = pidfd, .events = POLLIN};
    int64_t limit[2] = {timeout_ms / 1000, (int64_t)(timeout_ms % 1000) * 1000000};
    int n = sys_ppoll(&fd, 1, timeout_ms < 0 ? 0 : limit);
    if (n <= 0)
        return n;
    sys_waitid(P_PIDFD, pidfd, 0, WEXITED | WNOHANG | __WALL);
    return 1;
}

/* A descriptor for the init, which is an orphan and may be gone and reaped by now. Its number can't have been
 * given away again unless all numbers were used meanwhile; where the kernel gives pidfds inodes (6.9) even
 * that is noticed. */
static void hold_init(nsbox_result *res, uint64_t seen_ino)
{
    int fd = sys_pidfd_open(res->init_pid);
    if (fd >= 0 && fd < 3) {
        int high = sys_dupfd_cloexec(fd, 3);
        sys_close(fd);
        fd = high;
    }
    struct statx st;
    if (fd >= 0 && seen_ino && (sys_statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st) < 0 || st.stx_ino != seen_ino)) {
        sys_close(fd);
        fd = -1;
    }
    res->init_pidfd = fd;
}

/* Nothing of a spawn that failed goes on. The command first: pid 1 can't end while its zombie is there. */
static void clean_up(nsbox_result *res, int killed)
{
    if (res->pid > 0) {
        if (killed)
            sys_kill(res->pid, SIGKILL);
        sys_waitid(P_PID, res->pid, 0, WEXITED | __WALL);
        res->pid = 0;
    }
    if (res->init_pid <= 0)
        return;
    int fd = sys_pidfd_open(res->init_pid);
    if (fd < 0)
        return;
    if (killed)
        sys_kill(res->init_pid, SIGKILL);
    nsbox_pidfd_wait(fd, -1);
    sys_close(fd);
}

/* Waits for the mediator. True when it was killed from outside, so that its children may be anywhere. */
static int mediator_killed(int pid)
{
    int32_t info[32];
    info[2] = 0;
    while (sys_waitid(P_PID, pid, info, WEXITED | __WALL) == -EINTR)
        continue;
    return info[2] != 1; /* si_code, CLD_EXITED */
}

static void start(struct job *j)
{
    sys_sigset all = ~(sys_sigset)0;
    sys_sigprocmask(SIG_SETMASK, &all, &j->mask);
    /* exit_signal 0: no SIGCHLD, and no waitpid(-1) elsewhere in the program ever sees the mediator. */
    long pid = arch_clone(CLONE_VM | CLONE_VFORK, j->mediator_stack, 0, 0, mediator, j);
    int killed = pid < 0 ? 0 : mediator_killed((int)pid);
    if (pid < 0)
        report(j->res, (int)pid, NSBOX_STEP_CLONE, -1);
    if (killed)
        report(j->res, -EINTR, NSBOX_STEP_KILLED, -1);
    else
        await_exec(&j->command_tid);
    if (j->res->error)
        clean_up(j->res, killed);
    else
        hold_init(j->res, j->res->init_ino);
    sys_sigprocmask(SIG_SETMASK, &j->mask, 0);
}

int nsbox_spawn(const nsbox_request *req)
{
    nsbox_result *res = req->result;
    *res = (nsbox_result){.op = -1, .init_pidfd = -1};
    int32_t bad;
    if (nsbox_plan_check(req->plan, req->plan_len, &bad) < 0) {
        report(res, -EINVAL, NSBOX_STEP_PLAN, bad);
        return 0;
    }
    uint32_t nops = plan_nops(req->plan);
    uint64_t own = own_bytes(nops);
    if (req->arena_len < nsbox_arena_size(nops) || (uintptr_t)req->arena % 64) {
        report(res, -EINVAL, NSBOX_STEP_PLAN, -1);
        return 0;
    }
    struct job j = {
        .req = req,
        .res = res,
        .envp = req->envp,
        .mediator_stack = req->arena + own + MEDIATOR_STACK,
        .init_stack = req->arena + own + MEDIATOR_STACK + INIT_STACK,
        .command_stack = req->arena + own + MEDIATOR_STACK + INIT_STACK + COMMAND_STACK,
        .caller = sys_getpid(),
        .lifeline = -1,
        .setup_pipe = {-1, -1},
        .devnull = -1,
        .init_pidfd = -1,
        .init_image = -1,
        .init_proc = -ESRCH,
        .b = {.plan = req->plan,
              .root = -1,
              .base = -1,
              .scratch = -1,
              .masked = -1,
              .proc = -1,
              .stdout_fd = req->stdout_fd == -1 ? 1 : req->stdout_fd,
              .own = (uint64_t *)(void *)req->arena,
              .max_own = nops + 4,
              .new_proc = init_new_proc,
              .join_net = init_join_net,
              .parent = -1},
    };
    start(&j);
    return 0;
}
