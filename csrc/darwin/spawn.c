/* spawn.c: the caller's side of one spawn: before the fork, and after it.
 *
 * The command is a plain fork(2): macOS has no clone(2) that shares memory, and posix_spawn(2) has no place for what
 * must happen in the child. The profile is compiled before, since that can't be done between fork and exec.
 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { JOB_BYTES = (sizeof(struct job) + 63) & ~(size_t)63 };

uint64_t nsbox_arena_size(uint32_t nops)
{
    (void)nops;
    return JOB_BYTES + SPACE_BYTES;
}

int nsbox_has_ended(int pid, int block)
{
    siginfo_t info;
    memset(&info, 0, sizeof info); /* nothing is written if there is nothing to report */
    if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT | (block ? 0 : WNOHANG)) < 0)
        return -errno;
    return info.si_pid != 0;
}

static void fail(nsbox_result *res, int error, uint32_t step)
{
    res->error = -error;
    res->step = step;
}

static int is_open(int fd)
{
    return fd < 0 || fcntl(fd, F_GETFD) >= 0 ? 0 : -errno;
}

/* Checks the caller's descriptors before we open any: a number that the caller has closed would soon be one of ours. */
static int check_descriptors(const nsbox_request *r, uint32_t *step)
{
    *step = NSBOX_STEP_STDIO;
    int ret = is_open(r->stdin_fd);
    if (ret >= 0)
        ret = is_open(r->stdout_fd);
    if (ret >= 0)
        ret = is_open(r->stderr_fd);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_FDS;
    for (uint32_t i = 0; i < r->n_pass_fds && ret >= 0; i++)
        ret = r->pass_fds[i] < 0 ? -EBADF : is_open(r->pass_fds[i]);
    return ret;
}

/* Checks the request. A command without confinement is started only if the request says so. */
static int check(const nsbox_request *r, uint32_t *step)
{
    uint32_t flags = r->flags;
    *step = NSBOX_STEP_PLAN;
    if (r->arena_len < nsbox_arena_size(0) || (uintptr_t)r->arena % 64)
        return -EINVAL;
    *step = NSBOX_STEP_SANDBOX;
    if (!r->profile && !(flags & (NSBOX_BY_HELPER | NSBOX_UNCONFINED)))
        return -EINVAL;
    if (flags & NSBOX_BY_HELPER && (flags & NSBOX_PREEXEC || r->profile))
        return -EINVAL;
    *step = NSBOX_STEP_HELPER;
    if (flags & (NSBOX_BY_HELPER | NSBOX_LIFELINE) && !r->helper)
        return -EINVAL;
    return check_descriptors(r, step);
}

static int open_devnull(struct job *j)
{
    const nsbox_request *r = j->req;
    if (r->stdin_fd != NSBOX_DEVNULL && r->stdout_fd != NSBOX_DEVNULL && r->stderr_fd != NSBOX_DEVNULL)
        return 0;
    j->devnull = open("/dev/null", O_RDWR | O_CLOEXEC);
    return j->devnull < 0 ? -errno : move_high(&j->devnull);
}

/* Copies the descriptor to a number that is neither the stdio's nor one of pass_fds, which are open. */
static int copy_profile_fd(struct job *j)
{
    if (!(j->req->flags & NSBOX_BY_HELPER))
        return 0;
    j->profile_fd = fcntl(j->req->profile_fd, F_DUPFD_CLOEXEC, 3);
    return j->profile_fd < 0 ? -errno : 0;
}

static int open_own(struct job *j, struct report_pipe *pipe, uint32_t *step)
{
    *step = NSBOX_STEP_STDIO;
    int ret = open_devnull(j);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_HELPER;
    ret = copy_profile_fd(j);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_CLONE;
    ret = report_pipe_open(pipe);
    j->report = ret < 0 ? -1 : pipe->ends[1];
    return ret;
}

/* Waits for a child. If SIGCHLD is ignored, the kernel reaps it, and this only waits for its end. */
static void reap(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}

/* Returns when the program has been executed, or the process is gone. Whatever ends a confined process before the
 * exec counts as its own end, which its status tells, as with a plain fork. */
static void read_report(int fd, nsbox_result *res)
{
    struct report r;
    int n, is_confined = 0;
    while ((n = report_receive(fd, &r)) == sizeof r && !r.error)
        is_confined = 1;
    if (n == 0 && is_confined)
        return;
    if (n == sizeof r) {
        fail(res, -r.error, r.step);
    } else {
        fail(res, -ESRCH, NSBOX_STEP_KILLED);
        if (nsbox_has_ended(res->pid, 0) == 0)
            kill(res->pid, SIGKILL);
    }
    reap(res->pid);
    res->pid = 0;
}

/* Returns 0, or 1 in the command. */
static int start(struct job *j, struct report_pipe *pipe, nsbox_result *res)
{
    pid_t pid = fork();
    if (pid == 0) {
        close(pipe->ends[0]);
        return child(j);
    }
    if (pid < 0)
        fail(res, -errno, NSBOX_STEP_CLONE);
    else
        res->pid = pid;
    report_pipe_close(pipe, 1);
    if (pid > 0)
        read_report(pipe->ends[0], res);
    report_pipe_close(pipe, 0);
    report_pipe_forget(pipe);
    return 0;
}

static struct job *job_in(const nsbox_request *req)
{
    return (struct job *)(void *)req->arena;
}

int nsbox_spawn(const nsbox_request *req)
{
    nsbox_result *res = req->result;
    struct report_pipe pipe = {.ends = {req->pipe_read, req->pipe_write}};
    sigset_t all;
    uint32_t step;
    memset(res, 0, sizeof *res);
    res->op = res->init_pidfd = res->init_says = res->go_fd = res->pidfd = -1;
    res->user_fd = res->mnt_fd = res->null_fd = res->image_fd = -1;
    int ret = check(req, &step);
    if (ret < 0) {
        report_pipe_drop(&pipe);
        fail(res, ret, step);
        return 0;
    }
    struct job *j = job_in(req);
    *j = (struct job){.req = req, .space = req->arena + JOB_BYTES, .caller = getpid()};
    j->report = j->devnull = j->profile_fd = -1;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &j->mask);
    ret = open_own(j, &pipe, &step);
    if (ret < 0) {
        report_pipe_drop(&pipe);
        fail(res, ret, step);
    } else if (start(j, &pipe, res)) {
        return 1;
    }
    if (j->devnull >= 0)
        close(j->devnull);
    if (j->profile_fd >= 0)
        close(j->profile_fd);
    pthread_sigmask(SIG_SETMASK, &j->mask, NULL);
    return 0;
}

void nsbox_preexec_done(const nsbox_request *req, int32_t failed)
{
    child_after_preexec(job_in(req), failed);
}
