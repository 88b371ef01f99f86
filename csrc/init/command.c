/* command.c: a command of a session, from pid 1's request to its exec: a copy of pid 1, in a memory of its own. */
#include "session.h"

#include "linux/kernel/directory.h"
#include "queue.h"

struct entry entry;

static const char *text(uint64_t offset)
{
    return (const char *)entry.head + offset;
}

static _Noreturn void give_up(int error, uint32_t step)
{
    const nsbox_told_entry report = {.what = NSBOX_ENTRY_FAILED, .error = -error, .step = step};
    sys_write(entry.fds[FAILED], &report, sizeof report);
    sys_exit(127);
}

/* If one of our descriptors has the number that another is about to get, moves it out of the way. */
static int move_away(int i, int number)
{
    for (int k = TOLD; k < entry.n_fds; k++) {
        if (entry.fds[k] != number || k == i)
            continue;
        int fd = sys_dupfd_cloexec(number, 3);
        if (fd < 0)
            return fd;
        entry.fds[k] = fd;
    }
    return 0;
}

/* The descriptors that came get their numbers; the exec closes all others, and so ends the pipe. */
static int place_fds(void)
{
    const nsbox_entry *head = entry.head;
    const int32_t *targets = (const int32_t *)(const void *)text(head->targets);
    for (int i = 0; i < (int)head->n_targets; i++) {
        int *fd = &entry.fds[i + GIVEN], ret = move_away(i + GIVEN, targets[i]);
        if (ret >= 0)
            ret = *fd == targets[i] ? 0 : sys_dup3(*fd, targets[i], SYS_O_CLOEXEC);
        if (ret < 0)
            return ret;
        *fd = targets[i];
    }
    int ret = sys_close_range_cloexec(0, ~0U);
    for (int i = 0; i < (int)head->n_targets && ret >= 0; i++)
        ret = sys_set_fd_flags(targets[i], 0);
    return ret;
}

/* Opens /dev/null for those of 0 to 2 that need it. Those that came are in place; the rest are still ours and end
 * with the exec. */
static int open_nulls(void)
{
    for (int i = 0; i < 3; i++) {
        if (!(entry.head->flags & (uint32_t)NSBOX_ENTRY_NULL << i))
            continue;
        int fd = sys_openat(AT_FDCWD, "/dev/null", O_RDWR | O_NOFOLLOW, 0);
        int ret = fd < 0 ? fd : sys_dup3(fd, i, 0);
        if (ret < 0)
            return ret;
    }
    return 0;
}

static int enter_cwd(void)
{
    if (!entry.head->cwd)
        return 0;
    int ret = enter_directory(text(entry.head->cwd));
    return entry.head->flags & NSBOX_ENTRY_CWD_OPTIONAL ? 0 : ret;
}

/* Reports the first error that says more than "not here", as execvp does. */
static int execute(void)
{
    const char *const *programs = (const char *const *)(const void *)text(entry.head->programs);
    const char *const *argv = (const char *const *)(const void *)text(entry.head->argv);
    const char *const *envp = (const char *const *)(const void *)text(entry.head->envp);
    int error = 0, last = -ENOENT;
    for (; *programs; programs++) {
        last = sys_execve(*programs, argv, envp);
        if (last != -ENOENT && last != -ENOTDIR && !error)
            error = last;
    }
    return error ? error : last;
}

/* Turns the offsets in one of the request's arrays, which end in 0, into pointers. */
static void relocate(uint64_t base, uint64_t at)
{
    uint64_t *words = (uint64_t *)(uintptr_t)(base + at);
    for (; *words; words++)
        *words += base;
}

static int map_request(void)
{
    struct sys_statx st;
    int ret = sys_statx(entry.fds[REQUEST], "", AT_EMPTY_PATH, STATX_SIZE, &st);
    if (ret < 0)
        return ret;
    if (st.stx_size < sizeof *entry.head)
        return -EINVAL;
    long base = sys_map_private(entry.fds[REQUEST], st.stx_size);
    if (base < 0)
        return (int)base;
    entry.head = (const nsbox_entry *)base;
    if (entry.head->size != st.stx_size || (int)entry.head->n_targets + GIVEN != entry.n_fds)
        return -EINVAL;
    relocate((uint64_t)base, entry.head->programs);
    relocate((uint64_t)base, entry.head->argv);
    relocate((uint64_t)base, entry.head->envp);
    return 0;
}

static int take_terminal(uint32_t flags)
{
    for (int fd = 0; fd < 3; fd++)
        if (flags & (uint32_t)NSBOX_ENTRY_TERMINAL << fd)
            return sys_ioctl(fd, 0x540E /* TIOCSCTTY */, 0);
    return 0;
}

void command(void *signals_queued)
{
    const struct sys_rlimit *queue = signals_queued;
    uint8_t byte;
    /* The caller knows our pid, and we haven't been reaped yet. Or it has given up. */
    if (sys_read(entry.fds[TOLD], &byte, 1) != 1)
        sys_exit(127);
    int ret = queue->hard ? sys_prlimit(SIGNALS_QUEUED, queue, 0) : 0;
    if (ret >= 0)
        ret = mark_self(entry.mark);
    if (ret >= 0)
        ret = map_request();
    if (ret >= 0)
        ret = place_fds();
    if (ret >= 0)
        ret = open_nulls();
    if (ret < 0)
        give_up(ret, NSBOX_STEP_FDS);
    const nsbox_entry *head = entry.head;
    if (head->umask >= 0)
        sys_umask((unsigned)head->umask);
    if (head->flags & NSBOX_ENTRY_SETSID && (ret = sys_setsid()) < 0)
        give_up(ret, NSBOX_STEP_SESSION);
    if (head->pgid >= 0 && (ret = sys_setpgid(0, head->pgid)) < 0)
        give_up(ret, NSBOX_STEP_PGID);
    if ((ret = take_terminal(head->flags)) < 0)
        give_up(ret, NSBOX_STEP_TERMINAL);
    if ((ret = enter_cwd()) < 0)
        give_up(ret, NSBOX_STEP_CHDIR);
    uint32_t step;
    if ((ret = ids_take(head, &step)) < 0)
        give_up(ret, step);
    const sys_sigset none = 0;
    sys_sigprocmask(SIG_SETMASK, &none, 0);
    give_up(execute(), NSBOX_STEP_EXEC);
}
