/* system.c: the open descriptors of this process, and the end of others. It exists once for macOS, by libproc and
 * kqueue, and once for Linux, where the tests run. The part for macOS was written without a Mac: compiled and linked
 * for it, but never run. */
#include "system.h"

/* Returns the first descriptor from `from` up that stays open; INT32_MAX if there is none. */
static int next_kept(const struct kept *kept, int from)
{
    int least = INT32_MAX;
    uint32_t low = 0, high = kept->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (kept->fds[middle] < from)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < kept->n)
        least = kept->fds[low];
    for (int i = 0; i < 2; i++)
        if (kept->more[i] >= from && kept->more[i] < least)
            least = kept->more[i];
    return least;
}

#ifdef __APPLE__

#include <errno.h>
#include <libproc.h>
#include <limits.h>
#include <sys/event.h>
#include <sys/proc_info.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <unistd.h>

/* Numbers above aren't tried one by one: a quarter of a million calls take some ten milliseconds. */
enum { MOST_TRIED = 1 << 18 };

/* Closes each number that could be open. The soft limit may have been lowered since, so the hard one counts. */
static void close_each(const struct kept *kept)
{
    struct rlimit limit;
    int end = MOST_TRIED;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < MOST_TRIED)
        end = limit.rlim_max > OPEN_MAX ? (int)limit.rlim_max : OPEN_MAX;
    for (int fd = 3; fd < end; fd++)
        if (next_kept(kept, fd) != fd)
            close(fd);
}

/* Closes all others, without close_range(2), which macOS lacks. The kernel's list of open descriptors comes from a
 * bare system call, in bytes. A profile can refuse that call; and so much may stay open that nothing else fits into
 * the list. Then they are closed number by number. */
void system_close(const struct kept *kept, void *space, size_t size)
{
    struct proc_fdinfo *list = space;
    size_t room = size / sizeof *list;
    for (;;) {
        int bytes = proc_pidinfo(getpid(), PROC_PIDLISTFDS, 0, list, (int)(room * sizeof *list));
        size_t n = bytes > 0 ? (size_t)bytes / sizeof *list : 0, closed = 0;
        for (size_t i = 0; i < n; i++) {
            int fd = list[i].proc_fd;
            if (fd > 2 && next_kept(kept, fd) != fd) {
                close(fd);
                closed++;
            }
        }
        if (n > 0 && n < room)
            return;
        if (!closed)
            break;
    }
    close_each(kept);
}

/* On macOS the effective group is the first of the list, and setregid(2) replaces that one: it would be lost. */
int system_set_groups(uint32_t gid, const uint32_t *groups, uint32_t n)
{
    gid_t list[NGROUPS_MAX];
    int count = 0;
    list[count++] = gid;
    for (uint32_t i = 0; i < n; i++) {
        if (groups[i] == gid)
            continue;
        if (count == NGROUPS_MAX)
            return -EINVAL;
        list[count++] = groups[i];
    }
    return setgroups(count, list) < 0 ? -errno : 0;
}

/* Watches a process. The event belongs to the process, not to its number. One that has ended isn't found any more,
 * reaped or not. */
static int add(int queue, int pid)
{
    struct kevent change;
    EV_SET(&change, (uintptr_t)pid, EVFILT_PROC, EV_ADD, NOTE_EXIT, 0, NULL);
    return kevent(queue, &change, 1, NULL, 0, NULL) < 0 ? -errno : 0;
}

int system_watch(struct watch *w, int caller, int command)
{
    int gone = 0;
    w->pids[0] = caller;
    w->pids[1] = command;
    w->fds[0] = kqueue();
    w->fds[1] = -1;
    if (w->fds[0] < 0)
        return -errno;
    for (int i = 0; i < 2; i++) {
        int ret = add(w->fds[0], w->pids[i]);
        if (ret < 0 && ret != -ESRCH)
            return ret;
        if (ret < 0)
            gone |= i == 0 ? WATCH_CALLER : WATCH_COMMAND;
    }
    return gone;
}

int system_await(const struct watch *w)
{
    struct kevent events[2];
    int n, gone = 0;
    while ((n = kevent(w->fds[0], NULL, 0, events, 2, NULL)) < 0 && errno == EINTR)
        continue;
    for (int i = 0; i < n; i++)
        gone |= events[i].ident == (uintptr_t)w->pids[0] ? WATCH_CALLER : WATCH_COMMAND;
    return n < 0 ? -errno : gone;
}

#else

#include "linux/kernel/sys.h" /* the only place where this project makes system calls on Linux; no C library headers */

void system_close(const struct kept *kept, void *space, size_t size)
{
    (void)space;
    (void)size;
    for (int from = 3;;) {
        int next = next_kept(kept, from);
        if (next == INT32_MAX) {
            sys_close_range((unsigned)from, ~0U);
            return;
        }
        if (next > from)
            sys_close_range((unsigned)from, (unsigned)next - 1);
        from = next + 1;
    }
}

int system_set_groups(uint32_t gid, const uint32_t *groups, uint32_t n)
{
    (void)gid;
    return sys_setgroups(n, groups);
}

int system_watch(struct watch *w, int caller, int command)
{
    int gone = 0;
    w->pids[0] = caller;
    w->pids[1] = command;
    for (int i = 0; i < 2; i++) {
        w->fds[i] = sys_pidfd_open(w->pids[i]);
        if (w->fds[i] < 0 && w->fds[i] != -ESRCH)
            return w->fds[i];
        if (w->fds[i] < 0)
            gone |= i == 0 ? WATCH_CALLER : WATCH_COMMAND;
    }
    return gone;
}

int system_await(const struct watch *w)
{
    struct pollfd fds[2] = {{.fd = w->fds[0], .events = POLLIN}, {.fd = w->fds[1], .events = POLLIN}};
    int n;
    while ((n = sys_ppoll(fds, 2, NULL)) == -EINTR)
        continue;
    return n < 0 ? n : (fds[0].revents ? WATCH_CALLER : 0) | (fds[1].revents ? WATCH_COMMAND : 0);
}

#endif
