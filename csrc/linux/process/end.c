/* end.c: the end of what a spawn has started: waits for it, detects it, or brings it about when the spawn has
 * failed. */
#include "process.h"

/* Looks a few times before sleeping. The init's word comes some microseconds after the command's end: a sleep and
 * its wake take longer than a few looks, which leave the processor to the init if it waits for it. */
static int look_before_sleep(struct pollfd *fds)
{
    static const int64_t at_once[2] = {0, 0};
    int n = 0;
    for (int i = 0; i < 40 && n == 0; i++) {
        n = sys_ppoll(fds, 2, at_once);
        if (n == 0)
            sys_sched_yield();
    }
    return n;
}

/* 1: gone (and reaped, if it was our child), 0: not in time, -errno. */
int nsbox_wait(int pidfd, int init_says, int timeout_ms)
{
    struct pollfd fds[2] = {{.fd = pidfd, .events = POLLIN}, {.fd = init_says, .events = POLLIN}};
    int64_t limit[2] = {timeout_ms / 1000, (int64_t)(timeout_ms % 1000) * 1000000};
    int n = init_says >= 0 && timeout_ms ? look_before_sleep(fds) : 0;
    if (n == 0)
        n = sys_ppoll(fds, 2, timeout_ms < 0 ? 0 : limit);
    if (n <= 0)
        return n;
    int32_t info[SI_WORDS];
    info[SI_PID] = 0;
    int ret = sys_waitid(P_PIDFD, pidfd, info, WEXITED | WNOHANG | __WALL);
    if (info[SI_PID] || fds[0].revents || (ret < 0 && fds[1].revents & POLLIN))
        return 1;
    /* It is our child (we are a subreaper) and about to end, so reap it. Or it was killed before it could say more. */
    return nsbox_wait(pidfd, -1, timeout_ms);
}

/* Returns a descriptor for the init, or -ESRCH: it is an orphan, and may be gone and reaped by now. Its number can't
 * have been reused unless all numbers were used meanwhile; where the kernel gives pidfds inodes (6.9) even that is
 * noticed. */
static int open_init(const nsbox_result *res)
{
    int fd = open_pidfd(res->init_pid);
    struct sys_statx st;
    if (fd < 0 || !res->init_ino)
        return fd;
    if (sys_statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st) >= 0 && st.stx_ino == res->init_ino)
        return fd;
    sys_close(fd);
    return -ESRCH;
}

/* Is this child of ours a zombie, or has it gone altogether? */
int is_dead(int pid)
{
    int32_t info[SI_WORDS];
    info[SI_PID] = 0;
    int ret = sys_waitid(P_PID, pid, info, WEXITED | WNOHANG | WNOWAIT | __WALL);
    return ret < 0 ? sys_kill(pid, 0) == -ESRCH : info[SI_PID] != 0;
}

/* Ends a process that may use our memory. Needs no descriptor: there may be none left. If its pid isn't known
 * (CLONE_PARENT_SETTID writes it together with the process), there is no process, or the kernel couldn't write it:
 * see clean_up(). */
static void end_sharer(int pid, uint32_t *tid)
{
    if (pid <= 0)
        return;
    if (__atomic_load_n(tid, __ATOMIC_ACQUIRE))
        sys_kill(pid, SIGKILL);
    while (!await_exec(tid))
        if (is_dead(pid))
            return;
}

static void end_command(struct job *j)
{
    nsbox_result *res = j->res;
    if (res->pid <= 0)
        return;
    sys_kill(res->pid, SIGKILL);
    while (sys_waitid(P_PID, res->pid, 0, WEXITED | __WALL) == -EINTR)
        continue;
    res->pid = 0;
}

/* Kills the init and returns when it is gone, and reaped if it is our child. If this process has no descriptor left,
 * an init that nobody reaps looks alive: a second must suffice. */
static void end_init(struct job *j)
{
    static const int64_t one_ms[2] = {0, 1000000};
    int pid = j->res->init_pid, fd = pid > 0 ? open_init(j->res) : -ESRCH;
    if (fd >= 0) {
        sys_pidfd_send_signal(fd, SIGKILL);
        nsbox_wait(fd, -1, -1);
        sys_close(fd);
    } else if (fd != -ESRCH) {
        uint32_t never = 0;
        sys_kill(pid, SIGKILL);
        for (int i = 0; i < 1000 && sys_kill(pid, 0) != -ESRCH; i++) {
            sys_waitid(P_PID, pid, 0, WEXITED | WNOHANG | __WALL);
            sys_futex_wait(&never, 0, one_ms);
        }
    }
}

/* Ends all that a failed spawn has started. The command goes before the init: pid 1 can't end while the command's
 * zombie exists. A process whose pid isn't known (its mediator was killed in clone(2)) finds the gate closed for
 * ever, and the caller never uses this memory again: NSBOX_STEP_KILLED. */
void clean_up(struct job *j)
{
    set_gate(j, GATE_ABORT);
    end_sharer(j->helper.pid, &j->helper.tid);
    end_sharer(j->map_program.pid, &j->map_program.tid);
    end_command(j);
    end_init(j);
    end_sharer(j->res->init_pid, &j->init.tid);
    sys_close(j->res->pidfd);
    j->res->pidfd = -1;
}

/* Opens the descriptor for the init, or ends the sandbox: one whose end can't be waited for must not exist. It fails
 * if another thread has used the number that was reserved for it. */
void hold_init(struct job *j)
{
    int fd = has_init(j) ? open_init(j->res) : -ESRCH;
    if (fd < 0 &&
        (fd != -ESRCH ||
         j->req->flags & NSBOX_PARK)) { /* an init that ended after its command is fine, before one it isn't */
        report(j->res, fd, NSBOX_STEP_LIFELINE, -1);
        clean_up(j);
        kept_drop(j->res);
    }
    j->res->init_pidfd = fd < 0 ? -1 : fd;
}

/* Waits for a child of ours that ends without help. */
void reap(struct sharer *s)
{
    while (s->pid > 0 && sys_waitid(P_PID, s->pid, 0, WEXITED | __WALL) == -EINTR)
        continue;
    s->pid = 0;
}

/* Waits for the mediator. True if it was killed from outside, so that its children may be at any step. */
int mediator_killed(int pid)
{
    int32_t info[SI_WORDS];
    info[SI_CODE] = 0;
    while (sys_waitid(P_PID, pid, info, WEXITED | __WALL) == -EINTR)
        continue;
    return info[SI_CODE] != SI_EXITED;
}
