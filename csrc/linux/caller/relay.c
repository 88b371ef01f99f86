/* relay.c: the relay's process. It is nobody's child: no wait of the caller's sees it, and it survives an exec of
 * the caller's, for as long as sandboxes need it.
 */
#include "calls.h"
#include "isolation/isolation.h"

enum { FIRST_FD = 3, N_FDS = NSBOX_RELAY_FDS, ABOVE = FIRST_FD + N_FDS };

struct start {
    const char *program;
    const int32_t *fds;
    int devnull;
    int is_child;
    uint8_t *stack; /* the relay's */
    int pidfd;
    int error;
};

static int copy_above(int fd)
{
    int ret = sys_dupfd_cloexec(fd, ABOVE);
    return ret == -EINVAL ? -EMFILE : ret; /* under this limit there are no such numbers */
}

/* Sets up the descriptors: 0 to 2 are the null device, then come those it was given, without gaps, and nothing else.
 * 0 or -errno. */
static int take_fds(const struct start *s)
{
    int own[N_FDS], ret = 0;
    int null = copy_above(s->devnull);
    for (int i = 0; i < N_FDS && null >= 0; i++)
        if ((own[i] = copy_above(s->fds[i])) < 0)
            return own[i];
    for (int fd = 0; fd < FIRST_FD && null >= 0 && ret >= 0; fd++)
        ret = sys_dup3(null, fd, 0);
    for (int i = 0; i < N_FDS && null >= 0 && ret >= 0; i++)
        ret = sys_dup3(own[i], FIRST_FD + i, 0);
    return null < 0 ? null : ret < 0 ? ret : sys_close_range(FIRST_FD + N_FDS, ~0U);
}

/* Resets all signals: handlers are the caller's code, and the relay, which waits for children, must not ignore what
 * the caller does. */
static void reset_signals(void)
{
    const struct sys_sigaction reset = {.handler = SIG_DFL};
    const sys_sigset none = 0;
    for (int sig = 1; sig <= 8 * SYS_SIGSET_BYTES; sig++)
        sys_sigaction(sig, &reset, 0); /* two signals can't be reset, and needn't be */
    sys_sigprocmask(SIG_SETMASK, &none, 0);
}

static void relay(void *arg)
{
    static const char *const argv[] = {"nsbox-net", 0};
    static const char *const envp[] = {0};
    struct start *s = arg;
    int ret = sys_setsid();
    if (ret >= 0)
        ret = take_fds(s);
    if (ret >= 0)
        ret = sys_chdir("/");
    if (ret >= 0)
        ret = sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0);
    limit_own_core();
    sys_umask(077);
    reset_signals();
    s->error = ret < 0 ? ret : sys_execve(s->program, argv, envp);
    sys_exit(127);
}

/* The process between the caller and the relay: when it ends, the relay is an orphan. It has the caller's
 * descriptors, so the pidfd is one of these. */
static void between(void *arg)
{
    struct start *s = arg;
    unsigned long flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | (s->is_child ? CLONE_PARENT : 0);
    long pid = arch_clone(flags, s->stack, &s->pidfd, 0, relay, s);
    if (pid < 0)
        s->error = (int)pid;
    sys_exit(0);
}

int nsbox_relay_start(const char *program, const int32_t *fds, int devnull, int is_child, uint8_t *stack, uint64_t size)
{
    sys_sigset all = ~(sys_sigset)0, mask;
    struct start s = {program, fds, devnull, is_child, stack + size / 2, -1, 0};
    sys_sigprocmask(SIG_SETMASK, &all, &mask);
    long pid = arch_clone(CLONE_VM | CLONE_VFORK | CLONE_FILES, stack + size, 0, 0, between, &s);
    while (pid > 0 && sys_waitid(P_PID, (int)pid, 0, WEXITED | __WALL) == -EINTR)
        continue;
    sys_sigprocmask(SIG_SETMASK, &mask, 0);
    int ret = pid < 0 ? (int)pid : s.error;
    if (ret < 0) {
        if (s.pidfd >= 0)
            sys_close(s.pidfd);
        return ret;
    }
    return move_high(s.pidfd);
}
