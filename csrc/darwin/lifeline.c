/* lifeline.c: executes our helper program: as the process that ends a command when its caller ends, since macOS has
 * no parent-death signal; and as the command itself. This happens between fork and exec, like all of the command.
 *
 * It uses vfork(2). In a child of a process with libraries that have hooks at fork(3), a second fork can end in an
 * abort (they find their locks held by a thread of the parent). vfork runs no such hooks; on macOS it is otherwise a
 * fork. We also keep to what it is on Linux, where memory is shared until the exec: nothing that the parent needs
 * changes here.
 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const no_environment[] = {NULL};

enum { DIGITS = 12 };

/* Writes the digits of a number that isn't negative. */
static const char *decimal(char text[DIGITS], int number)
{
    char *at = text + DIGITS - 1;
    *at = 0;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    return at;
}

static int execute_helper(const struct job *j, const char *const *argv)
{
    const char *const programs[] = {j->req->helper, NULL};
    return execute(programs, argv, no_environment);
}

static int set_watcher_stdio(int report)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return -errno;
    int ret = move_high(&null);
    if (ret >= 0 && (dup2(null, 0) < 0 || dup2(report, 1) < 0 || dup2(null, 2) < 0))
        ret = -errno;
    return ret;
}

static const char *whom(uint32_t flags)
{
    if (!(flags & NSBOX_LIFELINE_GROUP))
        return NULL;
    return flags & NSBOX_STAY ? HELPER_GROUP : HELPER_ALL;
}

/* Becomes the watcher: in a session of its own, which no terminal's signal reaches, and with nothing of the caller's
 * or the command's. */
static _Noreturn void become_watcher(struct job *j, int command, int report)
{
    char caller_text[DIGITS], command_text[DIGITS];
    const char *const argv[] = {
        j->req->helper,      HELPER_WATCH, decimal(caller_text, j->caller), decimal(command_text, command),
        whom(j->req->flags), NULL};
    const struct kept none = {NULL, 0, {-1, -1}};
    sigset_t empty;
    setsid();
    int ret = set_watcher_stdio(report);
    if (ret < 0)
        report_send(report, -ret, NSBOX_STEP_HELPER);
    if (ret < 0)
        _exit(127);
    system_close(&none, j->space, SPACE_BYTES);
    sigemptyset(&empty);
    sigprocmask(SIG_SETMASK, &empty, NULL);
    report_send(1, -execute_helper(j, argv), NSBOX_STEP_HELPER);
    _exit(127);
}

/* Starts the watcher. Its parent ends at once, so that neither the command nor the caller has a child that it
 * doesn't know of. */
static _Noreturn void start_watcher(struct job *j, int command, int report)
{
    pid_t pid = vfork();
    if (pid == 0)
        become_watcher(j, command, report);
    if (pid < 0)
        report_send(report, errno, NSBOX_STEP_HELPER);
    _exit(0);
}

static void reap(pid_t pid)
{
    struct sigaction now;
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) /* ECHILD: SIGCHLD is ignored */
        continue;
    /* The signal is pending, and would be in the command too, if that blocks it. A default action that ignores a
     * signal discards it. */
    if (sigaction(SIGCHLD, NULL, &now) == 0 && now.sa_handler == SIG_DFL)
        sigaction(SIGCHLD, &now, NULL);
}

/* Returns when the watcher watches. From then on its events are about us and the caller, whichever processes get our
 * numbers later. The caller existed all the time, since we are still its child. */
int tie_to_caller(struct job *j)
{
    int ends[2], self = getpid();
    struct report r;
    j->step = NSBOX_STEP_LIFELINE;
    if (getppid() != j->caller)
        return -ESRCH;
    j->step = NSBOX_STEP_HELPER;
    int ret = pipe_open(ends);
    if (ret < 0)
        return ret;
    pid_t pid = vfork();
    if (pid == 0)
        start_watcher(j, self, ends[1]);
    ret = pid < 0 ? -errno : 0;
    close(ends[1]);
    if (ret >= 0) {
        reap(pid);
        ret = report_receive(ends[0], &r);
    }
    close(ends[0]);
    if (ret < 0)
        return ret;
    if (ret != sizeof r) /* it ended without a report, so it isn't our helper */
        return -ENOEXEC;
    if (r.error) {
        j->step = r.step;
        return -r.error;
    }
    j->step = NSBOX_STEP_LIFELINE;
    return getppid() == j->caller ? 0 : -ESRCH;
}

/* Executes the helper, which does the rest. Returns only with an error. */
int hand_over(struct job *j)
{
    char report_text[DIGITS], profile_text[DIGITS];
    const char *const argv[] = {j->req->helper, HELPER_APPLY, decimal(report_text, j->report),
                                decimal(profile_text, j->profile_fd), NULL};
    j->step = NSBOX_STEP_HELPER;
    int ret = set_cloexec(j->report, 0);
    if (ret >= 0)
        ret = set_cloexec(j->profile_fd, 0);
    if (ret < 0)
        return ret;
    unblock_signals(j);
    return execute_helper(j, argv);
}
