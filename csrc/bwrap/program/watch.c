/* watch.c: what stands between the set-up and the command: --block-fd and --userns-block-fd; what is told about the
 * sandbox: --info-fd and --json-status-fd; and what is held for it: --lock-file and --sync-fd.
 *
 * nsbox_spawn() returns when the command runs. Meanwhile a thread hears of the set-up through a socket, and lets it go
 * on by a byte in a pipe. It shares all with the first thread, which waits for its end before it looks at anything. */
#include <linux/sched.h>

#include "kernel/message.h"
#include "program.h"

enum { STACK = 65536, NAMESPACES = NSBOX_SHOWN - 1, READ_LOCK = 0, SET_OFD_LOCK = 37 };

/* In the order of nsbox_shown. */
static const struct {
    const char *file, *word;
    uint64_t flag;
} namespaces[NAMESPACES] = {
    {"cgroup", "cgroup-namespace", CLONE_NEWCGROUP}, {"ipc", "ipc-namespace", CLONE_NEWIPC},
    {"mnt", "mnt-namespace", CLONE_NEWNS},           {"net", "net-namespace", CLONE_NEWNET},
    {"pid", "pid-namespace", CLONE_NEWPID},          {"uts", "uts-namespace", CLONE_NEWUTS},
};

static struct {
    struct program *p;
    int reports, go;     /* the thread's ends: what it hears by, and what it lets the set-up go on by */
    int signalled[2];    /* readable after a signal */
    const char *problem; /* what went wrong in the thread */
    int32_t *locks;      /* --lock-file's files, each open and locked */
    uint64_t n_locks;
    volatile uint32_t thread; /* its number; the kernel makes it 0 when it has ended */
} watch;

bool is_watched(const struct program *p)
{
    static const int fds[] = {NSBOX_BWRAP_INFO, NSBOX_BWRAP_JSON_STATUS, NSBOX_BWRAP_BLOCK, NSBOX_BWRAP_USERNS_BLOCK,
                              NSBOX_BWRAP_SYNC};
    for (unsigned i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (p->line.fd[fds[i]] >= 0)
            return true;
    return p->line.n_lock_files;
}

/* Returns false, and says later what was wrong. */
static bool note(const char *const *parts)
{
    watch.problem = program_text(watch.p, parts);
    if (!watch.problem)
        watch.problem = errno_text(ENOMEM);
    return false;
}
#define NOTE(...) note((const char *const[]){__VA_ARGS__, NULL})

/* ---- what is told */

/* Waits until there is room for a write; -ECANCELED if a signal comes first. Nothing waits for a descriptor that isn't
 * open for writing: poll(2) would never find room there. */
static int await_room(int fd)
{
    struct pollfd fds[] = {{.fd = fd, .events = POLLOUT}, {.fd = watch.signalled[0], .events = POLLIN}};
    int flags = sys_get_status_flags(fd), ret;
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
        return flags < 0 ? flags : -EBADF;
    do
        ret = sys_ppoll(fds, 2, NULL);
    while (ret == -EINTR || ret == 0);
    return ret < 0 || fds[0].revents ? ret : -ECANCELED;
}

/* Where nobody reads it any more is an error, not the end of this process: its signal stays blocked. */
static bool write_all(int fd, const char *text)
{
    uint64_t n = text_length(text);
    const sys_sigset pipe = SIGNAL_BIT(SIGPIPE);
    sys_sigprocmask(SIG_BLOCK, &pipe, NULL);
    while (n) {
        long done = await_room(fd);
        if (done >= 0)
            done = sys_write(fd, text, n);
        if (done == -EINTR || done == -EAGAIN)
            continue;
        if (done == -ECANCELED)
            return NOTE("killed while nobody read what it reports");
        if (done < 0)
            return NOTE("Write to info_fd: ", errno_text((int)-done));
        text += done;
        n -= (uint64_t)done;
    }
    return true;
}

/* Closes a descriptor; a standard stream becomes /dev/null instead, so that nothing else gets its number. */
static void end(int fd)
{
    int nothing = fd > 2 ? -1 : sys_openat(AT_FDCWD, "/dev/null", O_RDWR, 0);
    if (nothing >= 0 && nothing != fd) {
        sys_dup3(nothing, fd, 0);
        sys_close(nothing);
    } else if (fd > 2) {
        sys_close(fd);
    }
}

/* Returns the inode number of a namespace of the sandbox: of a descriptor that shows it, or of a process. */
static int64_t number_of_namespace(int i, int of, const int *shown)
{
    struct sys_statx st;
    struct digits d;
    int ret;
    if (shown) {
        ret = sys_statx(shown[NSBOX_SHOWN_ROOT + 1 + i], "", SYS_AT_EMPTY_PATH, STATX_INO, &st);
    } else {
        const char *path = JOIN(watch.p, "/proc/", digits_of(&d, of), "/ns/", namespaces[i].file);
        ret = path ? sys_statx(AT_FDCWD, path, 0, STATX_INO, &st) : -ENOMEM;
    }
    return ret < 0 ? ret : (int64_t)st.stx_ino;
}

/* Returns the facts in JSON, with these words around and between them; NULL if they can't be had. */
static const char *facts(int child, int of, const int *shown, const char *before, const char *between,
                         const char *after)
{
    struct digits d;
    const char *text = JOIN(watch.p, before, "\"child-pid\": ", digits_of(&d, child));
    for (int i = 0; i < NAMESPACES && text; i++) {
        if (!(watch.p->request.namespaces & namespaces[i].flag))
            continue;
        int64_t number = number_of_namespace(i, of, shown);
        if (number < 0) {
            NOTE("Can't find out the ", namespaces[i].file, " namespace: ", errno_text((int)-number));
            return NULL;
        }
        text = JOIN(watch.p, text, between, "\"", namespaces[i].word, "\": ", digits_of(&d, number));
    }
    return text ? JOIN(watch.p, text, after) : NULL;
}

/* Writes to --info-fd, which is closed then, and to --json-status-fd, each once. early: before there are id maps. */
static bool inform(bool early, const int *shown)
{
    const nsbox_bwrap_line *line = &watch.p->line;
    const nsbox_result *known = watch.p->request.result;
    int info = line->fd[NSBOX_BWRAP_INFO], status = line->fd[NSBOX_BWRAP_JSON_STATUS];
    int of = !early ? known->pid : known->init_pid ? known->init_pid : known->pid ? known->pid : known->set_up_pid;
    /* Pid 1, unless the command's mounts are its own copy: readers of the pid use it to find the namespaces. */
    int child = watch.p->request.caps && !early ? of : known->init_pid ? known->init_pid : of;
    if (info >= 0 && early == (line->fd[NSBOX_BWRAP_USERNS_BLOCK] >= 0)) {
        const char *text = facts(child, of, shown, "{\n    ", ",\n    ", "\n}\n");
        if (!text || !write_all(info, text))
            return false;
        end(info);
    }
    if (status >= 0 && !early) {
        const char *text = facts(child, of, shown, "{ ", ", ", " }\n");
        return text && write_all(status, text);
    }
    return true;
}

/* ---- what is held */

/* As a process would whose root is this directory. */
static int open_inside(int root, const char *path)
{
    return sys_openat2(root, path, O_RDONLY | O_NONBLOCK, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
}

/* Takes a read lock on each file, by its name inside. The open file has the lock, so that it can be handed over. */
static bool lock(int root)
{
    const nsbox_bwrap_line *line = &watch.p->line;
    for (uint64_t i = 0; i < line->n_lock_files; i++) {
        struct {
            int16_t type, whence;
            int64_t start, length;
            int32_t pid;
        } whole = {READ_LOCK, 0, 0, 0, 0};
        const char *path = line->lock_files[i];
        int fd = open_inside(root, path), ret = fd < 0 ? fd : sys_fcntl(fd, SET_OFD_LOCK, &whole);
        if (fd >= 0)
            watch.locks[watch.n_locks++] = fd;
        if (ret < 0)
            return NOTE("Unable to ", fd < 0 ? "open lock" : "lock", " file ", path, ": ", errno_text(-ret));
    }
    return true;
}

/* ---- the thread */

/* Waits for a byte or the end of the descriptor that blocks the sandbox; false if the sandbox, or we, end first. */
static bool may_go_on(int fd, int pid)
{
    uint8_t byte;
    struct digits d;
    int gone = sys_pidfd_open(pid);
    if (gone < 0)
        return false; /* the reason is told elsewhere */
    struct pollfd fds[] = {
        {.fd = fd, .events = POLLIN}, {.fd = gone, .events = POLLIN}, {.fd = watch.signalled[0], .events = POLLIN}};
    int ret;
    do
        ret = sys_ppoll(fds, 3, NULL);
    while (ret == -EINTR || ret == 0);
    sys_close(gone);
    if (ret >= 0 && !fds[0].revents)
        return NOTE("killed while it was blocked");
    if (ret >= 0)
        ret = (int)sys_read(fd, &byte, 1);
    return ret >= 0 || NOTE("Can't read from fd ", digits_of(&d, fd), ": ", errno_text(-ret));
}

/* Receives what the command shows of itself; false if there is none. */
static bool receive(int *shown)
{
    int ret = receive_fds(watch.reports, shown, NSBOX_SHOWN, 0);
    return ret >= 0 || (ret != -EPIPE && NOTE(errno_text(-ret)));
}

static void attend(void)
{
    const nsbox_bwrap_line *line = &watch.p->line;
    const nsbox_result *known = watch.p->request.result;
    int maps = line->fd[NSBOX_BWRAP_USERNS_BLOCK], block = line->fd[NSBOX_BWRAP_BLOCK];
    int shown[NSBOX_SHOWN];
    if (maps >= 0) {
        uint8_t byte;
        long n;
        do
            n = sys_read(watch.reports, &byte, 1);
        while (n == -EINTR);
        if (n <= 0 || !inform(true, NULL) || !may_go_on(maps, known->set_up_pid))
            return;
        sys_write(watch.go, "m", 1);
    }
    if (!receive(shown))
        return;
    bool is_well = lock(shown[NSBOX_SHOWN_ROOT]) && inform(false, shown);
    for (int i = 0; i < NSBOX_SHOWN; i++)
        sys_close(shown[i]);
    if (is_well && (block < 0 || may_go_on(block, known->pid)))
        sys_write(watch.go, "g", 1);
}

static void thread_main(void *unused)
{
    (void)unused;
    sys_sigset all = ~(sys_sigset)0;
    attend();
    sys_sigprocmask(SIG_SETMASK, &all, NULL); /* from here on, the first thread gets all signals */
    sys_close(watch.go);                      /* unless it was let go: now it gives up */
    sys_exit_thread();
}

/* ---- the first thread */

static int make_ends(int reports[2], int hold[2])
{
    int ret = sys_packet_pair(reports);
    ret = ret < 0 ? ret : sys_pipe2(hold, SYS_O_CLOEXEC);
    ret = ret < 0 ? ret : sys_pipe2(watch.signalled, SYS_O_CLOEXEC | O_NONBLOCK);
    for (int i = 0; i < 2 && ret >= 0; i++) {
        int *fds[] = {&reports[i], &hold[i], &watch.signalled[i]};
        for (int k = 0; k < 3 && ret >= 0; k++) { /* the low ones belong to the command */
            int low = *fds[k];
            if (low > 2)
                continue;
            ret = *fds[k] = sys_dupfd_cloexec(low, 3);
            sys_close(low); /* or the end of this descriptor would never come */
        }
    }
    return ret;
}

bool watch_begin(struct program *p)
{
    static const int told[] = {NSBOX_BWRAP_INFO, NSBOX_BWRAP_JSON_STATUS};
    int reports[2], hold[2], ret;
    watch.p = p;
    for (unsigned i = 0; i < 2; i++)
        if (p->line.fd[told[i]] >= 0 && (ret = sys_get_fd_flags(p->line.fd[told[i]])) < 0)
            return FAIL(p, "Write to info_fd: ", errno_text(-ret));
    watch.locks = program_take(p, (p->line.n_lock_files + 1) * sizeof *watch.locks);
    uint8_t *stack = sys_map(STACK);
    if (!watch.locks || !stack)
        return no_memory(p);
    ret = make_ends(reports, hold);
    if (ret < 0)
        return FAIL(p, "Can't make pipes to hold the command by: ", errno_text(-ret));
    watch.reports = reports[0];
    watch.go = hold[1];
    p->request.report_fd = reports[1];
    p->request.hold_fd = hold[0];
    wake_by(watch.signalled[1]);
    watch.thread = 1;
    long thread = arch_clone(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                                 CLONE_CHILD_CLEARTID,
                             stack + STACK, NULL, (int *)(uintptr_t)&watch.thread, thread_main, NULL);
    return thread >= 0 || FAIL(p, "Can't make a thread: ", errno_text((int)-thread));
}

/* Holds the locks and --sync-fd for as long as the sandbox lives, which may be longer than this process: in a process
 * of its own, which has nothing else. 0 or -errno. */
static int hold(struct program *p)
{
    int sync = p->line.fd[NSBOX_BWRAP_SYNC], n = (int)watch.n_locks;
    const nsbox_result *known = p->request.result;
    if (!n && sync < 0)
        return 0;
    if (sync >= 0)
        watch.locks[n++] = sync;
    int gone = known->init_pidfd >= 0 ? known->init_pidfd : sys_pidfd_open(known->pid);
    if (gone < 0)
        return gone;
    long pid = sys_fork();
    if (pid == 0) {
        struct pollfd fd = {.fd = gone, .events = POLLIN};
        for (unsigned low = 0;;) { /* closes all others */
            unsigned next = (unsigned)gone;
            bool is_last = (unsigned)gone < low;
            for (int i = 0; i < n; i++)
                if ((unsigned)watch.locks[i] >= low && ((unsigned)watch.locks[i] < next || is_last)) {
                    next = (unsigned)watch.locks[i];
                    is_last = false;
                }
            if (is_last) {
                sys_close_range(low, ~0u);
                break;
            }
            if (next > low)
                sys_close_range(low, next - 1);
            low = next + 1;
        }
        while (sys_ppoll(&fd, 1, NULL) == -EINTR)
            continue;
        sys_exit(0);
    }
    for (int i = 0; i < n && pid > 0; i++)
        sys_close(watch.locks[i]);
    return pid < 0 ? (int)pid : 0;
}

bool watch_started(struct program *p)
{
    nsbox_result *known = p->request.result;
    uint32_t thread;
    sys_close(p->request.report_fd); /* if nothing was reported, the thread ends now */
    while ((thread = watch.thread))
        sys_futex_wait((const uint32_t *)(uintptr_t)&watch.thread, thread, NULL);
    wake_by(-1);
    sys_close(watch.reports);
    sys_close(p->request.hold_fd);
    int ret = known->error ? 0 : hold(p);
    if (ret < 0) {
        sys_kill(known->pid, SIGKILL);
        if (known->init_pidfd >= 0)
            sys_pidfd_send_signal(known->init_pidfd, SIGKILL);
        NOTE("Can't make a process that holds locks: ", errno_text(-ret));
    }
    return !watch.problem || FAIL(p, watch.problem);
}

/* Writes the exit status of a command that has been started. That its reader has gone is no error. */
void watch_ended(struct program *p, int status, bool is_told_to_end)
{
    static const int64_t at_once[2] = {0, 0};
    int fd = p->line.fd[NSBOX_BWRAP_JSON_STATUS];
    struct digits d;
    const char *text = fd < 0 ? NULL : JOIN(p, "{ \"exit-code\": ", digits_of(&d, status), " }\n");
    if (!text)
        return;
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    if (sys_ppoll(&room, 1, at_once) == 0) { /* nobody reads it; a signal ends the wait for a reader */
        if (is_told_to_end)
            return;
        leave_signals();
    }
    write_all(fd, text);
}
