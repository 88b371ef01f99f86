/* wait.c: signals that this process gets are the command's; the command's end is this process's. */
#include "program.h"

ARCH_RESTORE;

enum {
    WALL = 0x40000000, /* __WALL, wait(2): a command that was killed before its exec sends no SIGCHLD */
    BY_KERNEL = 0x80,  /* SI_KERNEL: such as a terminal's key, which the whole group gets */
    MOST = 64,         /* signals that wait to be passed on */
    MAX_PATIENCE_MS = 60000,
    LONGEST_MS = 30000 /* that a killed command may take to end */
};

static const int forwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
enum { FORWARDED = sizeof forwarded / sizeof forwarded[0] };

static int wake_fd = -1;
static int waiting[MOST]; /* numbers, in their order */
static unsigned n_waiting, n_taken;
static sys_sigset given; /* the signals that were blocked before the wait */

static void take_note(int number)
{
    unsigned at = __atomic_fetch_add(&n_waiting, 1, __ATOMIC_SEQ_CST);
    if (at < MOST)
        __atomic_store_n(&waiting[at], number, __ATOMIC_SEQ_CST);
    if (wake_fd >= 0)
        sys_write(wake_fd, "", 1);
}

/* Those that this process ignores stay ignored, by the command too. SIGCHLD is the exception: a process that ignores
 * it gets no statuses to wait for. */
void catch_signals(void)
{
    struct sys_sigaction usual = {.handler = SIG_DFL}, old;
    struct sys_sigaction ours = {.handler = take_note, .flags = ARCH_SA_RESTORER, .restorer = arch_restore};
    sys_sigset child = SIGNAL_BIT(SIGCHLD);
    sys_sigaction(SIGCHLD, &usual, NULL);
    sys_sigprocmask(SIG_UNBLOCK, &child, NULL);
    for (unsigned i = 0; i < FORWARDED; i++)
        ours.mask |= SIGNAL_BIT(forwarded[i]);
    for (unsigned i = 0; i < FORWARDED; i++)
        if (sys_sigaction(forwarded[i], NULL, &old) >= 0 && old.handler != SIG_IGN)
            sys_sigaction(forwarded[i], &ours, NULL);
}

void leave_signals(void)
{
    struct sys_sigaction usual = {.handler = SIG_DFL}, now;
    for (unsigned i = 0; i < FORWARDED; i++)
        if (sys_sigaction(forwarded[i], NULL, &now) >= 0 && now.handler == take_note)
            sys_sigaction(forwarded[i], &usual, NULL);
    sys_sigprocmask(SIG_SETMASK, &given, NULL);
}

int caught(void)
{
    unsigned n = __atomic_load_n(&n_waiting, __ATOMIC_SEQ_CST);
    return n_taken < n && n_taken < MOST ? __atomic_load_n(&waiting[n_taken], __ATOMIC_SEQ_CST) : 0;
}

void wake_by(int fd)
{
    wake_fd = fd;
}

static int64_t now_ms(void)
{
    int64_t time[2] = {0};
    sys_clock_gettime(1 /* CLOCK_MONOTONIC */, time);
    return time[0] * 1000 + time[1] / 1000000;
}

/* Does a process handle a signal, or ignore it on purpose? A pid 1 that does neither survives it (pid_namespaces(7)). */
static bool is_caught(struct program *p, int pid, int number)
{
    struct digits d;
    void *kept = p->line.memory; /* signals may come for ever: what each one takes is given back */
    p->line.memory = NULL;
    const char *path = JOIN(p, "/proc/", digits_of(&d, pid), "/status");
    const char *text = path ? file_text(p, path, NULL) : NULL;
    bool found = !text;
    for (const char *at = text; at && *at && !found;) {
        const char *mask = text_after(at, "SigCgt:");
        mask = mask ? mask : text_after(at, "SigIgn:");
        found = mask && (hexadecimal_after(mask) >> (number - 1) & 1);
        while (*at && *at++ != '\n')
            continue;
    }
    memory_give_back(&p->line.memory);
    p->line.memory = kept;
    return found;
}

/* Waits for a signal, and for the command's end at the latest after some time. Returns its number, 0 if it isn't for
 * the command, or -1 after that time. */
static int next_signal(const struct program *p, sys_sigset watched, int64_t ms, sys_sigset *got)
{
    int32_t info[SI_WORDS];
    int64_t timeout[2] = {ms / 1000, ms % 1000 * 1000000};
    int number = sys_sigtimedwait(&watched, info, timeout);
    if (number <= 0)
        return -1;
    *got |= SIGNAL_BIT(number);
    if (number == SIGCHLD)
        return 0;
    /* A terminal that hangs up signals only the session's leader, which may be us. */
    if (info[SI_CODE] == BY_KERNEL && number != SIGHUP && !(p->line.flags & NSBOX_BWRAP_NEW_SESSION))
        return 0;
    return number;
}

int wait_for_command(struct program *p, int *ours)
{
    int pid = p->request.result->pid, status = 0, fatal = 0;
    int64_t patience = 50, until = 0;
    sys_sigset watched = SIGNAL_BIT(SIGCHLD), got = 0;
    for (unsigned i = 0; i < FORWARDED; i++)
        watched |= SIGNAL_BIT(forwarded[i]);
    sys_sigprocmask(SIG_BLOCK, &watched, &given);
    *ours = 0;
    for (;;) {
        int ended = sys_wait_usage(pid, &status, 1 /* WNOHANG */ | WALL, NULL), killed = status & 0x7f;
        if (ended != 0 && ended != -EINTR) {
            killed = killed && fatal ? fatal : killed;
            *ours = killed && (got & SIGNAL_BIT(killed)) ? killed : 0;
            return ended < 0 ? 1 : killed ? 128 + killed : status >> 8 & 0xff;
        }
        int number = caught();
        if (number) {
            n_taken++;
            got |= SIGNAL_BIT(number);
        } else {
            if (until && now_ms() > until) {
                struct digits d;
                FAIL(p, "Process ", digits_of(&d, pid), " was killed, and doesn't end");
                return 1;
            }
            number = next_signal(p, watched, until && patience > 1000 ? 1000 : patience, &got);
            if (number < 0)
                patience = patience < MAX_PATIENCE_MS / 2 ? patience * 2 : MAX_PATIENCE_MS;
        }
        if (number <= 0)
            continue;
        if (p->line.flags & NSBOX_BWRAP_AS_PID_1 && !is_caught(p, pid, number)) {
            fatal = number;
            number = SIGKILL;
            until = until ? until : now_ms() + LONGEST_MS;
        }
        sys_kill(pid, number);
    }
}
