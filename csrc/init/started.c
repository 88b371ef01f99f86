/* started.c: all that a command of a session has started, whatever its parent, session or group is by now.
 *
 * Its orphans are our children, as all orphans here are, and nothing that a process may change about itself says
 * whose it was. But a limit is inherited by each child, and the kernel no longer enforces that of file locks (Linux
 * 2.4.25). So the hard limit of these, RLIMIT_LOCKS, is a number of the command's own. Only we can set it: the
 * session's filter answers any process that doesn't know a secret as if it were done. Where that can't be (in a
 * session inside another one, or if a filter refuses prlimit(2)), a command has no mark.
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

/* They go down: a hard limit can't be raised. */
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

/* The procfs of our own pid namespace, or -1: a policy may have shown another one there, or none. */
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

/* 1: it is there, if only as a zombie, and got the signal. Looked at again when there is a pidfd: the number can be another
 * process's by now. */
static unsigned visit(int pid, uint64_t mark, int sig)
{
    if (pid < 2 || mark_of(pid) != mark)
        return 0;
    int fd = sys_pidfd_open(pid);
    if (fd < 0) /* a thread, where we ask for each number; or no descriptor is free, which isn't for long */
        return fd != -EINVAL && fd != -ENOENT;
    if (sig && mark_of(pid) == mark)
        sys_pidfd_send_signal(fd, sig);
    if (sig == SIGTERM) /* what is stopped can't act on it */
        sys_pidfd_send_signal(fd, SIGCONT);
    sys_close(fd);
    return 1;
}

/* None is missed, however fast they fork and exit: the one that all others descend from is our child, or its children
 * are by now, and we reap none meanwhile. So if there are none, even dead, there will be none. It ends at `most`:
 * otherwise processes that fork while we look would hold us up. */
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
