/* signals.c: the command's signals up to its exec: which are reset, and which one ends it with the caller; also its
 * pidfd, for a caller that ignores SIGCHLD. */
#include "process.h"

/* Resets the caller's handlers, which point into its code: none may run when signals are unblocked. (In the mediator
 * and the init they never are.) Ignored signals stay ignored, except those of restore_signals, and SIGCHLD: programs
 * that inherit it ignored can't tell how their children end, and bwrap waits for ever. */
void default_signals(const struct job *j)
{
    const nsbox_request *r = j->req;
    struct sys_sigaction old, reset = {.handler = SIG_DFL};
    for (int sig = 1; sig <= 8 * SYS_SIGSET_BYTES; sig++) {
        int restored = r->flags & NSBOX_RESTORE_SIGNALS && (sig == SIGPIPE || sig == SIGXFSZ);
        restored |= r->flags & (NSBOX_RESTORE_SIGNALS | NSBOX_UNCONFINED) && sig == SIGCHLD;
        if (!j->command.has_handlers && !restored) /* clone3(2) has cleared all others */
            continue;
        if (sys_sigaction(sig, 0, &old) < 0 || old.handler == SIG_DFL)
            continue;
        if (old.handler != SIG_IGN || restored)
            sys_sigaction(sig, &reset, 0);
    }
}

/* Unblocks signals. A pending one may kill us at once; it mustn't dump core into the sandbox, since our memory is
 * still the caller's. */
void unblock_signals(const struct job *j)
{
    const sys_sigset dumping = SIGNAL_BIT(SIGQUIT) | SIGNAL_BIT(SIGILL) | SIGNAL_BIT(SIGTRAP) | SIGNAL_BIT(SIGABRT) |
                               SIGNAL_BIT(SIGBUS) | SIGNAL_BIT(SIGFPE) | SIGNAL_BIT(SIGSEGV) | SIGNAL_BIT(SIGXCPU) |
                               SIGNAL_BIT(SIGXFSZ) | SIGNAL_BIT(SIGSYS);
    sys_sigset pending;
    if (sys_sigpending(&pending) < 0 || (pending & dumping & ~j->mask))
        limit_own_core();
    sys_sigprocmask(SIG_SETMASK, &j->mask, 0);
}

/* Clears the death signal: from the exec on, or from preexec_fn on, the init ends the command with the caller.
 * Without an init the signal stays, if the calling thread is the one that lasts. */
int death_signal(const struct job *j)
{
    int stays = (j->req->flags & NSBOX_DIE_WITH_THREAD) != 0;
    int ret = sys_prctl(PR_SET_PDEATHSIG, stays ? SIGKILL : 0, 0);
    int parent =
        stays ? sys_getppid() : j->caller; /* 0: it is outside of our pid namespace; the signal was set all along */
    return ret < 0 || parent == j->caller || parent == 0 ? ret : -ESRCH;
}

/* Keeps the death signal that preexec_fn has set, as with a plain child. preexec_fn may also have changed ids, which
 * clears the signal (commit_creds). */
int death_signal_after_preexec(const struct job *j)
{
    int now = 0;
    int ret = sys_prctl(PR_GET_PDEATHSIG, (unsigned long)(uintptr_t)&now, 0);
    return ret < 0 || now || !(j->req->flags & NSBOX_DIE_WITH_THREAD) ? ret : death_signal(j);
}

/* Does the kernel reap this process's children itself (wait(2), "NOTES")? */
int ignores_children(void)
{
    const unsigned long no_zombies = 2; /* SA_NOCLDWAIT */
    struct sys_sigaction now = {.handler = SIG_DFL};
    return sys_sigaction(SIGCHLD, 0, &now) >= 0 && (now.handler == SIG_IGN || now.flags & no_zombies);
}

/* Does the command wait until its pidfd is open? If the kernel has reaped a child, only its pidfd tells how it ended
 * (PIDFD_GET_INFO, Linux 6.15), and it has to be open by then. The command has the caller's memory up to its exec;
 * one that has a copy doesn't wait. */
static int is_awaited(const struct job *j)
{
    return j->command.is_watched && !(j->req->flags & (NSBOX_FORK_COMMAND | NSBOX_PREEXEC | NSBOX_PLAIN));
}

/* Runs in the command: waits until the caller has opened that pidfd. If the caller ends, the death signal is still
 * set, or the init ends us: all other descriptors are closed by now. */
void await_watch(struct job *j)
{
    static const int64_t fifty_ms[2] = {0, 50000000};
    while (is_awaited(j) && !__atomic_load_n(&j->command.is_open, __ATOMIC_ACQUIRE))
        sys_futex_wait(&j->command.is_open, 0, fifty_ms);
}

/* Runs in the caller, when its mediator has gone. Without a free descriptor it remains unknown how the command
 * ended. */
void watch_command(struct job *j)
{
    int fd = j->command.is_watched && j->res->pid > 0 ? sys_pidfd_open(j->res->pid) : -1;
    if (fd >= 0 && fd < 3) {
        int high = sys_dupfd_cloexec(fd, 3);
        sys_close(fd);
        fd = high;
    }
    j->res->pidfd = fd < 0 ? -1 : fd;
    __atomic_store_n(&j->command.is_open, 1, __ATOMIC_RELEASE);
    sys_futex_wake(&j->command.is_open);
}
