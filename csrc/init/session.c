/* session.c: pid 1 of a session; starts commands for the caller in one sandbox, one after the other or at once.
 *
 * Like init.c, it is a static program without a C library. It is executed as the command of a sandbox, once
 * everything that confines a command is in place, so what it starts inherits the filters, the namespaces, the ids
 * and the limits. It has nothing that its commands don't have, except three descriptors: a socket (0) for the
 * caller's requests, a pidfd of the caller (1), and this image (2). Where the sandbox has several ids, it also has a few
 * capabilities (ids.c). It isn't dumpable, and as pid 1 it can't be
 * killed from inside. When the caller ends, or closes its end of the socket, it exits, and the kernel kills all that
 * is left (pid_namespaces(7)).
 *
 * Each command has a socket of its own to the caller. There the caller gets the command's pidfd, lets it go on, and
 * learns of its end. The command also has a pipe that ends with its exec, or says why there was none. Nothing here
 * waits for a command: others in the sandbox can stop it as soon as it exists (SIGSTOP), and could so keep this
 * program from noticing the caller's end.
 */
#include "session.h"

#include "linux/kernel/message.h"
#include "queue.h"

enum { MOST = 256, STACK = 65536, ALIGNED = 64, AT_ONCE = 4096, REAPED = 65536 };

struct child {
    int pid, report_fd; /* report_fd: its socket */
};

static struct child children[MOST];
static struct sys_rlimit queue; /* how many signals may be queued: what commands have */
static uint8_t stack[STACK] __attribute__((aligned(ALIGNED)));

/* ---- messages */

struct rights {
    size_t len;
    int level, type, fds[MOST_FDS];
};

static void close_all(const int *fds, int n)
{
    for (int i = 0; i < n; i++)
        sys_close(fds[i]);
}

/* Returns how many descriptors came; 0 at the end, or -errno. request: unless it is to start a command. */
static int receive(int *fds, struct request *request)
{
    static struct rights control;
    struct iovec data = {request, sizeof *request - 1};
    request->asking.what = 0;
    struct message message = {.iov = &data, .n_iov = 1, .control = &control, .n_control = sizeof control};
    int got = sys_recvmsg(0, &message, 0x40000040 /* MSG_CMSG_CLOEXEC | MSG_DONTWAIT */);
    if (got <= 0)
        return got;
    if (message.n_control < 16)
        return -EAGAIN;
    int n = (int)((control.len - 16) / sizeof *fds);
    for (int i = 0; i < n; i++)
        fds[i] = control.fds[i];
    ((char *)request)[got] = 0;
    if (got < (int)sizeof request->asking)
        request->asking.what = 0;
    if (!(message.flags & 8 /* MSG_CTRUNC: no room in our table */) && n >= (request->asking.what ? 1 : GIVEN))
        return n;
    close_all(fds, n);
    return -EAGAIN;
}

static int tell(int socket, const nsbox_told_entry *what, int fd)
{
    static struct rights control;
    struct iovec data = {(void *)(uintptr_t)what, sizeof *what};
    struct message message = {.iov = &data, .n_iov = 1, .control = &control, .n_control = fd < 0 ? 0 : 20};
    control.len = 20;
    control.level = 1; /* SOL_SOCKET */
    control.type = 1;  /* SCM_RIGHTS */
    control.fds[0] = fd;
    return sys_sendmsg_flags(socket, &message, 0x4040 /* MSG_NOSIGNAL | MSG_DONTWAIT */);
}

/* ---- requests */

static struct child *free_place(void)
{
    for (int i = 0; i < MOST; i++)
        if (!children[i].pid)
            return &children[i];
    return 0;
}

/* Starts the command, in a copy of our memory, and doesn't wait for it. */
static void start(int n_fds)
{
    struct child *place = free_place();
    nsbox_told_entry report = {.what = NSBOX_ENTRY_FAILED, .step = NSBOX_STEP_COMMAND, .error = EAGAIN};
    int pidfd = -1;
    entry.n_fds = n_fds;
    report.mark = entry.mark = mark_next();
    long pid = place ? arch_clone(CLONE_PIDFD | 17 /* SIGCHLD */, stack + STACK, &pidfd, 0, command, &queue) : -EAGAIN;
    if (pid > 0)
        report.what = NSBOX_ENTRY_STARTED;
    else
        report.error = (int32_t)-pid;
    int ret = tell(entry.fds[TOLD], &report, pidfd);
    if (pid > 0 && ret >= 0) {
        place->pid = (int)pid;
        place->report_fd = entry.fds[TOLD];
        entry.fds[TOLD] = -1;
    } /* else the caller notices that the other end is closed, and so does the child */
    close_all(entry.fds, n_fds);
    sys_close(pidfd);
}

static int reap(void);

static void answer(const struct request *request, const int *fds, int n_fds)
{
    const nsbox_asking *asking = &request->asking;
    nsbox_told_entry report = {.what = NSBOX_ENTRY_SIGNALLED};
    int made = -1;
    if (asking->what == NSBOX_ASKED_SECRET) {
        if (asking->signal && ids_begin() < 0)
            sys_exit(1);
        marks_begin(asking->mark);
    } else if (asking->what == NSBOX_ASKED_IDS &&
               ids_become((uint32_t)asking->mark, (uint32_t)(asking->mark >> 32)) < 0)
        sys_exit(1);
    else if (asking->what == NSBOX_ASKED_SEND)
        report.error = n_fds > 1 ? -sys_pidfd_send_signal(fds[1], asking->signal) : EINVAL;
    else if (asking->what == NSBOX_ASKED_SIGNAL && asking->mark)
        report.mark = signal_marked(asking->mark, asking->signal, AT_ONCE);
    else if (asking->what == NSBOX_ASKED_FREEZE && asking->mark) {
        sys_kill(-1, SIGSTOP); /* a fork that has begun fails with a signal pending, and is restarted */
        report.mark = signal_marked(asking->mark, asking->signal, ~0UL);
        sys_kill(-1, SIGCONT);
    }
    /* Nothing is missed: a fork fails with a signal pending, and what was forked before is in the list (kill(2)). */
    if (asking->what == NSBOX_ASKED_END)
        report.error = -sys_kill(-1, SIGKILL);
    int kept = 0;
    if (asking->what == NSBOX_ASKED_ROOT || asking->what == NSBOX_ASKED_MAKE)
        made = names_serve(request, fds + 1, n_fds - 1, &report);
    else if (asking->what == NSBOX_ASKED_KEEP) {
        int64_t number = output_keep(fds + 1, n_fds - 1, asking->signal);
        report.what = NSBOX_ENTRY_KEPT;
        report.mark = (uint64_t)(number < 0 ? NSBOX_NOT_KEPT : number);
        kept = number < 0 ? 0 : n_fds - 1;
    }
    for (int i = 0; i < REAPED / 64 && report.mark && report.what == NSBOX_ENTRY_SIGNALLED && reap(); i++)
        continue; /* much of what was killed may be dead by now, and needn't be looked at again */
    tell(fds[0], &report, made);
    sys_close(made);
    close_all(fds, 1);
    close_all(fds + 1 + kept, n_fds - 1 - kept);
}

/* Serves one request. Returns 0 if the caller has closed its end, or nothing more can come. */
static int serve(void)
{
    static struct request request;
    int n = receive(entry.fds, &request);
    if (n > 0 && request.asking.what)
        answer(&request, entry.fds, n);
    else if (n > 0)
        start(n);
    return n > 0 || n == -EAGAIN || n == -EINTR;
}

/* ---- the end of commands, and of orphans */

/* Reaps up to 64 processes. 1: there may be more. */
static int reap(void)
{
    struct sys_rusage used;
    int status;
    for (int n = 0; n < 64; n++) { /* however fast orphans are made: we also have to notice the caller's end */
        int pid = sys_wait_usage(-1, &status, WNOHANG | __WALL, &used);
        if (pid == -EINTR)
            continue;
        if (pid <= 0)
            return 0;
        for (int i = 0; i < MOST; i++) {
            if (children[i].pid != pid)
                continue;
            nsbox_told_entry report = {
                .what = NSBOX_ENTRY_ENDED,
                .error = status,
                .user_us = used.user[0] * 1000000 + used.user[1],
                .system_us = used.system[0] * 1000000 + used.system[1],
                .max_rss = used.max_rss * 1024,
            };
            tell(children[i].report_fd, &report, -1);
            sys_close(children[i].report_fd);
            children[i].pid = 0;
            break;
        }
    }
    return 1;
}

_Noreturn __attribute__((used)) void nsbox_session_main(void)
{
    struct sys_sigaction standard = {.handler = SIG_DFL};
    uint8_t info[128];
    sys_prctl(PR_SET_DUMPABLE, 0, 0);
    sys_prctl(PR_SET_NAME, (unsigned long)"nsbox-init", 0);
    const sys_sigset all = ~(sys_sigset)0;
    sys_sigprocmask(SIG_SETMASK, &all, 0);
    sys_sigaction(SIGCHLD, &standard, 0);
    sys_close(2);
    if (sys_prlimit(SIGNALS_QUEUED, 0, &queue) >= 0)
        queue_no_signals(queue.hard); /* a filter keeps commands from raising it */
    int ended = sys_signalfd(SIGNAL_BIT(SIGCHLD), SYS_O_CLOEXEC | O_NONBLOCK);
    if (ended < 0 || sys_set_fd_flags(0, 1) < 0 || sys_set_fd_flags(1, 1) < 0)
        sys_exit(1);
    static const int64_t at_once[2] = {0, 0};
    int more = 1;
    for (;;) {
        static struct pollfd watched[3 + 2 * MOST_OUTPUTS];
        const int own[3] = {0, 1, ended};
        for (int i = 0; i < 3; i++)
            watched[i] = (struct pollfd){.fd = own[i], .events = POLLIN};
        unsigned outputs = output_watch(watched + 3);
        int n = sys_ppoll(watched, 3 + outputs, more ? at_once : 0);
        if (n < 0 && n != -EINTR)
            sys_exit(1);
        if (n > 0 && watched[1].revents)
            sys_exit(0);
        if (n > 0 && watched[2].revents)
            sys_read(ended, info, sizeof info);
        more = reap();
        if (n > 0)
            output_take(watched + 3, outputs);
        if (n > 0 && watched[0].revents && !serve())
            sys_exit(0);
    }
}

ARCH_START(nsbox_session_main);
