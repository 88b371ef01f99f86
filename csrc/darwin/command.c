/* command.c: the steps between fork and exec, each of which could be one of CPython's child_exec. They use only
 * functions that are safe there: the caller may have had threads that held locks. child.c decides when each happens. */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Moves *fd away from numbers below `floor`, which are about to be overwritten. */
static int move_up(int *fd, int floor)
{
    if (*fd < 0 || *fd >= floor)
        return 0;
    *fd = fcntl(*fd, F_DUPFD_CLOEXEC, 3);
    return *fd < 0 ? -errno : 0;
}

static int put_at(int fd, int number)
{
    if (fd < 0)
        return 0;
    if (fd == number)
        return set_cloexec(fd, 0);
    return dup2(fd, number) < 0 ? -errno : 0;
}

int set_stdio(struct job *j)
{
    const nsbox_request *r = j->req;
    j->step = NSBOX_STEP_STDIO;
    int in = r->stdin_fd == NSBOX_DEVNULL ? j->devnull : r->stdin_fd;
    int out = r->stdout_fd == NSBOX_DEVNULL ? j->devnull : r->stdout_fd;
    int err = r->stderr_fd == NSBOX_DEVNULL ? j->devnull : r->stderr_fd;
    int ret = move_up(&out, 1);
    if (ret >= 0)
        ret = move_up(&err, 2);
    if (ret >= 0)
        ret = put_at(in, 0);
    if (ret >= 0)
        ret = put_at(out, 1);
    if (ret >= 0)
        ret = put_at(err, 2);
    return ret;
}

/* Resets the caller's handlers, which point into its code: none may run when signals are unblocked. Ignored signals
 * stay ignored. */
void default_signals(const nsbox_request *r)
{
    struct sigaction old, reset = {.sa_handler = SIG_DFL};
    for (int sig = 1; sig < NSIG; sig++) {
        if (sigaction(sig, NULL, &old) < 0)
            continue;
        int restored = r->flags & NSBOX_RESTORE_SIGNALS && (sig == SIGPIPE || sig == SIGXFSZ);
        if (old.sa_flags & SA_SIGINFO || old.sa_handler != SIG_IGN || restored)
            sigaction(sig, &reset, NULL);
    }
}

/* Unblocks signals. A pending one may kill us at once; it mustn't write our memory, which is still a copy of the
 * caller's, as a core dump where the command's files are. */
void unblock_signals(const struct job *j)
{
    static const int dumping[] = {SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGXCPU, SIGXFSZ, SIGSYS};
    static const struct rlimit none = {0, 0};
    sigset_t pending;
    int dumps = sigpending(&pending) < 0;
    for (unsigned i = 0; !dumps && i < sizeof dumping / sizeof dumping[0]; i++)
        dumps = sigismember(&pending, dumping[i]) == 1 && sigismember(&j->mask, dumping[i]) != 1;
    if (dumps)
        setrlimit(RLIMIT_CORE, &none);
    sigprocmask(SIG_SETMASK, &j->mask, NULL);
}

/* Gives the command its terminal. Signals are blocked, and so is SIGTTOU, which a background group gets for
 * tcsetpgrp(3). */
static int take_terminal(struct job *j)
{
    const nsbox_request *r = j->req;
    if (!r->terminal)
        return 0;
    j->step = NSBOX_STEP_TERMINAL;
    int fd = (int)r->terminal - 1;
    int ret = r->flags & NSBOX_SETSID ? ioctl(fd, TIOCSCTTY, 0) : tcsetpgrp(fd, getpid());
    return ret < 0 ? -errno : 0;
}

int set_session(struct job *j)
{
    const nsbox_request *r = j->req;
    j->step = NSBOX_STEP_SESSION;
    if (r->flags & NSBOX_SETSID && setsid() < 0)
        return -errno;
    j->step = NSBOX_STEP_PGID;
    if (r->pgid >= 0 && setpgid(0, r->pgid) < 0)
        return -errno;
    int ret = take_terminal(j);
    if (ret >= 0 && r->umask >= 0)
        umask((mode_t)r->umask);
    return ret;
}

/* Sets only ids that differ: a process that isn't root's may set none at all. The saved ones follow, here or with
 * the exec. */
int set_ids(struct job *j)
{
    const nsbox_request *r = j->req;
    j->step = NSBOX_STEP_GROUPS;
    int ret = r->flags & NSBOX_SET_GROUPS ? system_set_groups(r->gid, r->groups, r->n_groups) : 0;
    if (ret < 0)
        return ret;
    j->step = NSBOX_STEP_GID;
    if ((getgid() != r->gid || getegid() != r->gid) && setregid(r->gid, r->gid) < 0)
        return -errno;
    j->step = NSBOX_STEP_UID;
    if ((getuid() != r->uid || geteuid() != r->uid) && setreuid(r->uid, r->uid) < 0)
        return -errno;
    return 0;
}

int enter_cwd(struct job *j)
{
    const nsbox_request *r = j->req;
    j->step = NSBOX_STEP_CHDIR;
    if (chdir(r->cwd ? r->cwd : "/") == 0)
        return 0;
    int error = errno;
    return r->flags & NSBOX_CWD_OPTIONAL && chdir("/") == 0 ? 0 : -error;
}

int set_limits(struct job *j)
{
    const nsbox_request *r = j->req;
    j->step = NSBOX_STEP_RLIMIT;
    for (uint32_t i = 0; i < r->n_rlimits; i++) {
        const nsbox_rlimit *wish = &r->rlimits[i];
        struct rlimit now;
        if (getrlimit((limit_name)wish->resource, &now) < 0)
            return -errno;
        if (wish->hard < now.rlim_max) /* never higher: preexec_fn may have lowered it */
            now.rlim_max = wish->hard;
        now.rlim_cur = wish->soft < now.rlim_max ? wish->soft : now.rlim_max;
        if (setrlimit((limit_name)wish->resource, &now) < 0)
            return -errno;
    }
    return 0;
}

/* Closes what isn't 0..2 or in pass_fds, except for what we need until the exec; those in pass_fds survive it. */
int set_descriptors(struct job *j)
{
    const nsbox_request *r = j->req;
    j->step = NSBOX_STEP_FDS;
    if (r->flags & NSBOX_CLOSE_FDS) {
        const struct kept kept = {r->pass_fds, r->n_pass_fds, {j->report, j->profile_fd}};
        system_close(&kept, j->space, SPACE_BYTES);
    }
    for (uint32_t i = 0; i < r->n_pass_fds; i++) {
        int ret = set_cloexec(r->pass_fds[i], 0);
        if (ret < 0)
            return ret;
    }
    return 0;
}
