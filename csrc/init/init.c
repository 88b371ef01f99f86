/* init.c: pid 1 of each sandbox; a static program without a C library, with nothing in its memory.
 *
 * Descriptor 0 is a pidfd of the process that asked for the sandbox. Descriptor 1 is the read end of a pipe that
 * ends when the set-up is over. Descriptor 2 is the write end of the pipe for its reports (nsbox_word). It has no
 * environment and no capability, and isn't dumpable: all that the command can reach of it is a pid. All its signals
 * are blocked. It lives as long as the caller does (except with NSBOX_OUTLIVE) and the command (pid 2, or 3), or
 * with NSBOX_STAY as long as anything of the sandbox. When it exits, the kernel kills every process of the namespace
 * (pid_namespaces(7)): that is how a sandbox ends.
 */
#include "abi.h"
#include "linux/kernel/sys.h"
#include "queue.h"

/* The kernel made this image non-dumpable at exec, since its file can't be read, only executed. Set it again for
 * kernels where an LSM decides otherwise. */
static void hide(void)
{
    sys_prctl(PR_SET_DUMPABLE, 0, 0);
    sys_prctl(PR_SET_NAME, (unsigned long)"nsbox-init", 0);
}

static long say(enum nsbox_said what)
{
    struct sys_rusage used;
    nsbox_word word = {.said = what};
    if (sys_getrusage(-1 /* RUSAGE_CHILDREN */, &used) >= 0) {
        word.user_us = used.user[0] * 1000000 + used.user[1];
        word.system_us = used.system[0] * 1000000 + used.system[1];
        word.max_rss = used.max_rss * 1024;
    }
    return sys_write(2, &word, sizeof word);
}

/* Orphans of the sandbox become our children. SIGCHLD must not be ignored: what the kernel reaps by itself is
 * counted nowhere. As it is blocked, it only wakes us. Returns a signalfd, or -errno. */
static int watch_signals(void)
{
    struct sys_sigaction standard = {.handler = SIG_DFL};
    sys_sigaction(SIGCHLD, &standard, 0);
    const sys_sigset ours = SIGNAL_BIT(NSBOX_END) | SIGNAL_BIT(NSBOX_ASK) | SIGNAL_BIT(NSBOX_ASK_PATIENTLY);
    return sys_signalfd(SIGNAL_BIT(SIGCHLD) | ours, SYS_O_CLOEXEC | O_NONBLOCK);
}

/* Reaps what has ended, at most 64 processes at a time: however fast the sandbox makes orphans, we also have to
 * notice the end of the caller and of the command. Above 0, or -EINTR: there may be more; 0: some are left; -ECHILD:
 * none. */
static int reap(void)
{
    int ret = 1;
    for (int i = 0; i < 64 && (ret > 0 || ret == -EINTR); i++)
        ret = sys_wait4(-1, WNOHANG | __WALL);
    return ret;
}

static int64_t now_ms(void)
{
    int64_t time[2] = {0, 0};
    sys_clock_gettime(1 /* CLOCK_MONOTONIC */, time);
    return time[0] * 1000 + time[1] / 1000000;
}

/* Returns the end that the caller wants (enum nsbox_signal), or 0. Reads one siginfo, since pending SIGCHLDs are
 * merged into one. Only from outside can such a signal come without a pid that we know (pid_namespaces(7)), so no
 * process inside can end pid 1. */
static int wish_of_caller(int signals)
{
    struct { /* signalfd_siginfo, signalfd(2) */
        uint32_t number;
        int32_t error, code;
        uint32_t pid;
        uint8_t more[112];
    } info;
    int is_callers = sys_read(signals, &info, sizeof info) == sizeof info && info.number != SIGCHLD &&
                     info.code == 0 /* SI_USER */ && info.pid == 0;
    return is_callers ? (int)info.number : 0;
}

/* Sends SIGTERM to all; then SIGCONT, since a stopped process can't act on it. */
static void ask_all_to_end(void)
{
    sys_kill(-1, SIGTERM);
    sys_kill(-1, SIGCONT);
}

/* Returns a pidfd of the command, or an error if it has ended and the caller has reaped it, or if it never existed.
 * Its number may be another process's by then: a process with power over the pid namespace can choose one
 * (clone3(2), set_tid). The kernel's own counter wraps to 300 (RESERVED_PIDS) even where pid_max is the namespace's
 * own (Linux 6.14) and 301. So look at the parent: any other process has one of us; the command's is outside.
 * Kernels before Linux 6.13 don't know that request. */
static int open_command(int number)
{
    struct { /* pidfd_info, <linux/pidfd.h> */
        uint64_t mask, cgroup;
        uint32_t pid, tgid, ppid, more[9];
    } info = {.mask = 1 /* PIDFD_INFO_PID */};
    int fd = sys_pidfd_open(number);
    if (fd < 0)
        return fd;
    int ret = sys_ioctl(fd, 0xC040FF0B /* PIDFD_GET_INFO */, &info);
    if (ret < 0 || info.ppid == 0) /* up to 6.15 it also fails with ESRCH if the parent is outside */
        return fd;
    sys_close(fd);
    return -ESRCH;
}

/* Waits for the end of the pipe, or of the process that has the other end. Then the mediator has gone, so the
 * command exists or never will. A parked sandbox waits for long, and its pipe may have got into other processes.
 * Returns the byte that came. */
static int await_setup(void)
{
    uint8_t byte;
    int orders = 0;
    struct pollfd watched[2] = {{.fd = 1, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    while (!(orders & NSBOX_GO)) {
        if (sys_ppoll(watched, 2, 0) < 0)
            continue;
        if (!watched[0].revents)
            break;
        long n = sys_read(1, &byte, 1);
        if (n > 0)
            orders = byte;
        else if (n != -EINTR)
            break;
    }
    sys_close(1);
    return orders;
}

/* The command has ended, so end everything else now, so that it is accounted for. Wait for that, unless the caller ends:
 * all that was killed goes, and our own exit would wait for it too (zap_pid_ns_processes() of the kernel). But processes
 * of other ids, which we have no capability to kill, end only with us: if there can be any, wait a tenth of a second.
 * Otherwise only what has come in from outside could hold us up, so the limit is long. If nothing is left, the caller
 * needn't wait for our own end, most of which is the kernel's unmounting. */
static _Noreturn void end(int signals, int caller, int orders)
{
    static const int64_t ten_ms[2] = {0, 10000000}, moment[2] = {0, 200000};
    const int64_t patience = orders & NSBOX_HAS_ONE_ID ? 30000 : 100;
    int left = reap();
    if (left != -ECHILD)
        sys_kill(-1, SIGKILL); /* its result doesn't cover all: kill_something_info() keeps one of theirs */
    for (int64_t until = now_ms() + patience; (left >= 0 || left == -EINTR) && now_ms() < until; left = reap()) {
        struct pollfd fds[2] = {{.fd = signals, .events = POLLIN}, {.fd = caller, .events = POLLIN}};
        if (left == 0 && sys_ppoll(fds, 2, ten_ms) > 0)
            wish_of_caller(signals); /* we are ending already */
        if (fds[1].revents)
            break;
    }
    if (left == -ECHILD) {
        say(NSBOX_SAID_EMPTY);
        if (!(orders & NSBOX_IS_ADOPTED)) /* else our end is what the caller waits for */
            sys_ppoll(0, 0,
                      moment); /* let the caller run first: a mere yield would leave it waiting for our unmounting */
    }
    sys_exit(0);
}

_Noreturn __attribute__((used)) void nsbox_init_main(void)
{
    hide();
    queue_no_signals(0);
    int signals = watch_signals();
    if (signals < 0 || say(NSBOX_SAID_UP) < 0)
        sys_exit(1);
    int orders = await_setup(), stay = orders & NSBOX_STAYS;
    if (orders & NSBOX_OUTLIVES)
        sys_close(0);
    int caller = orders & NSBOX_OUTLIVES ? -1 : 0;
    int command = open_command(orders & NSBOX_IS_THIRD ? 3 : 2);
    if (command < 0 && !stay)
        end(signals, caller, orders);
    static const int64_t at_once[2] = {0, 0}, tenth[2] = {0, 100000000};
    int64_t until = 0; /* 0: no end was asked for */
    int more = 1, request = 0;
    for (;;) {
        struct pollfd watched[3] = {
            {.fd = caller, .events = POLLIN}, {.fd = command, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
        int n = sys_ppoll(watched, 3, more ? at_once : until ? tenth : 0);
        if (n < 0 && n != -EINTR)
            sys_exit(0);
        if (n > 0 && watched[0].revents)
            sys_exit(0);
        int wish = n > 0 && watched[2].revents ? wish_of_caller(signals) : 0;
        if (wish == NSBOX_ASK || wish == NSBOX_ASK_PATIENTLY) {
            request = wish;
            ask_all_to_end();
        }
        if (n > 0 && watched[1].revents) {
            if (!stay && !request)
                end(signals, caller, orders);
            command = -1; /* what else was asked to end may do so in order */
            until = stay || request == NSBOX_ASK_PATIENTLY ? 0 : now_ms() + 2000;
        }
        /* The command was killed, but has a tracer, without which it can't end. So end all, so that they are
         * accounted for. Processes of other ids, which we may not kill, end with us. */
        if (wish == NSBOX_END && (!until || command < 0)) {
            sys_kill(-1, SIGKILL);
            until = now_ms() + 1000;
            request = 0;
        }
        int left = reap(), is_over = (until && now_ms() >= until) || (left == -ECHILD && command < 0);
        if (is_over && command < 0 && !stay)
            end(signals, caller, orders);
        if (is_over)
            sys_exit(0);
        more = left > 0 || left == -EINTR;
    }
}

ARCH_START(nsbox_init_main);
