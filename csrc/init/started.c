/* started.c: finds all that a command of a session has started, whatever its parent, session or group is by now.
 *
 * A command's orphans become our children, as all orphans here do, and nothing that a process may change about
 * itself says whose it was. But a limit is inherited by each child, and the kernel no longer enforces the one on
 * file locks (Linux 2.4.25). So its hard limit, RLIMIT_LOCKS, holds a number of the command's own. Only we can set
 * it: to any process that doesn't know a secret, the session's filter pretends to have done so. Where that can't be
 * (in a session inside another one, or if a filter refuses prlimit(2)), a command has no mark.
 */
#include "session.h"

enum { LOCKS = 10 /* RLIMIT_LOCKS */, FEWEST = 1 << 20, MOST_PIDS = 1 << 22 /* PID_MAX_LIMIT */ };

static uint64_t secret, last; /* last: the mark before the next one; 0: there are none */

static uint64_t mark_of(int pid)
{
    struct sys_rlimit now;
    return sys_limits_of(pid, LOCKS, &now) < 0 ? 0 : now.hard;
}

int mark_self(uint64_t mark)
{
    const struct sys_rlimit limit = {mark, mark};
    return mark ? sys_limit_by(LOCKS, &limit, secret) : 0;
}

/* Marks go down, since a hard limit can't be raised. */
void marks_begin(uint64_t number)
{
    uint64_t top = mark_of(0);
    secret = number;
    top = top > 1UL << 62 ? 1UL << 62 : top;
    if (top > FEWEST && mark_self(top - 1) >= 0 && mark_of(0) == top - 1)
        last = top - 1;
}

uint64_t mark_next(void)
{
    return last > 1 ? --last : 0;
}

/* Returns the procfs of our own pid namespace, or -1: a policy may have mounted another one there, or none. */
static int open_procfs(void)
{
    char self[4];
    int fd = sys_openat(AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | SYS_O_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (sys_is_procfs(fd) && sys_readlinkat(fd, "self", self, sizeof self) == 1 && self[0] == '1')
        return fd;
    sys_close(fd);
    return -1;
}

static int number(const char *name)
{
    int pid = 0;
    for (; *name >= '0' && *name <= '9' && pid < MOST_PIDS; name++)
        pid = pid * 10 + (*name - '0');
    return *name ? 0 : pid;
}

/* 1: the process exists, if only as a zombie, and got the signal. The mark is checked again through a pidfd: the
 * number can be another process's by now. */
static unsigned visit(int pid, uint64_t mark, int sig)
{
    if (pid < 2 || mark_of(pid) != mark)
        return 0;
    int fd = sys_pidfd_open(pid);
    if (fd < 0) /* it is a thread, if we try each number; or no descriptor is free, which won't last */
        return fd != -EINVAL && fd != -ENOENT;
    if (sig && mark_of(pid) == mark)
        sys_pidfd_send_signal(fd, sig);
    if (sig == SIGTERM) /* what is stopped can't act on it */
        sys_pidfd_send_signal(fd, SIGCONT);
    sys_close(fd);
    return 1;
}

/* Signals all processes with this mark; returns how many there are, up to `most`. None is missed, however fast they
 * fork and exit. The process that all the others descend from is our child, or its children are by now, and we reap
 * none meanwhile. So if there are none, not even dead ones, there will be none. It stops at `most`: otherwise
 * processes that fork while we look would hold us up. */
uint64_t signal_marked(uint64_t mark, int sig, uint64_t most)
{
    static uint8_t entries[32768] __attribute__((aligned(8)));
    enum { LENGTH = 16, NAME = 19 }; /* struct linux_dirent64, getdents(2) */
    uint64_t found = 0;
    int n, proc = open_procfs();
    for (int pid = 2; proc < 0 && pid < MOST_PIDS; pid++)
        found += visit(pid, mark, sig);
    while (proc >= 0 && found < most && (n = sys_getdents(proc, entries, sizeof entries)) > 0)
        for (int at = 0; at < n; at += *(uint16_t *)(void *)(entries + at + LENGTH))
            found += visit(number((const char *)entries + at + NAME), mark, sig);
    sys_close(proc);
    return found;
}
