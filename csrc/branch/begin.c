/* begin.c: the interpreter's part of a branch: a pid namespace, its pid 1, and the way back. */
#include "branch.h"
#include "isolation/isolation.h"

struct pid1 {
    int lifeline, setup, says, image;
    int error; /* why it couldn't execute the image, or 0 */
};

enum { CLONE_STACK = 8192, HIGH = 3 };

static int fail(nsbox_branch *b, uint32_t step, int error)
{
    b->step = step;
    b->error = -error;
    return error;
}

static void close_end(int32_t *fd)
{
    if (*fd >= 0)
        sys_close(*fd);
    *fd = -1;
}

/* Makes a pipe whose ends are numbered from 3 up: the numbers below belong to the program's standard streams, even
 * while these are closed. */
static int high_pipe(int ends[2], int flags)
{
    int ret = sys_pipe2(ends, SYS_O_CLOEXEC | flags);
    if (ret < 0)
        return ret;
    int first = move_high(ends[0]), second = move_high(ends[1]);
    ends[0] = first;
    ends[1] = second;
    if (first >= 0 && second >= 0)
        return 0;
    sys_close(first);
    sys_close(second);
    return first < 0 ? first : second;
}

static void pid1_main(void *arg)
{
    struct pid1 *p = arg;
    int ret = sys_chdir("/");
    p->error = ret < 0 ? ret : execute_init(p->lifeline, p->setup, p->says, p->image);
    sys_exit(127);
}

/* Clones pid 1, and returns when it runs its image: until then it has our memory and we sleep (vfork(2)). No signal
 * may reach it meanwhile, so all are blocked; they stay blocked in the image. */
static int start_pid1(nsbox_branch *b, struct pid1 *p)
{
    _Alignas(64) uint8_t stack[CLONE_STACK];
    sys_sigset all = ~(sys_sigset)0, mask;
    int pidfd = -1;
    sys_sigprocmask(SIG_SETMASK, &all, &mask);
    long pid = arch_clone(CLONE_VM | CLONE_VFORK | CLONE_PIDFD, stack + sizeof stack, &pidfd, 0, pid1_main, p);
    sys_sigprocmask(SIG_SETMASK, &mask, 0);
    if (pid < 0)
        return (int)pid;
    b->init_pid = (int32_t)pid;
    b->init_pidfd = move_high(pidfd);
    return p->error < 0 ? p->error : b->init_pidfd;
}

static void reap(int pid)
{
    while (pid > 0 && sys_waitid(P_PID, pid, 0, WEXITED | __WALL) == -EINTR)
        continue;
}

/* Returns to the pid namespace where our children are to be. */
static int go_back(const nsbox_branch *b)
{
    return b->pid_fd < 0 ? 0 : sys_setns(b->pid_fd, CLONE_NEWPID);
}

static void end_pid1(nsbox_branch *b, int and_reap)
{
    if (b->init_pid > 0) {
        sys_kill(b->init_pid, SIGKILL); /* our child, so the number is its own */
        if (and_reap)
            reap(b->init_pid);
    }
    if (and_reap)
        b->init_pid = 0;
    close_end(&b->init_pidfd);
    close_end(&b->says_fd);
}

int32_t nsbox_branch_begin(nsbox_branch *b)
{
    int setup[2] = {-1, -1}, says[2] = {-1, -1};
    b->init_pid = b->error = 0;
    b->init_pidfd = b->says_fd = b->setup_fd = b->op = -1;
    b->step = NSBOX_STEP_NONE;
    int ret = high_pipe(setup, 0);
    if (ret >= 0)
        ret = high_pipe(says, O_NONBLOCK);
    uint32_t step = NSBOX_STEP_INIT;
    if (ret >= 0) {
        step = NSBOX_STEP_UNSHARE;
        ret = sys_unshare(CLONE_NEWPID);
    }
    int is_away = ret >= 0 && step == NSBOX_STEP_UNSHARE;
    if (ret >= 0) {
        struct pid1 p = {b->lifeline_fd, setup[0], says[1], b->image_fd, 0};
        step = NSBOX_STEP_INIT;
        ret = start_pid1(b, &p);
    }
    sys_close(setup[0]);
    sys_close(says[1]);
    b->setup_fd = setup[1];
    b->says_fd = says[0];
    if (ret >= 0)
        return 0;
    close_end(&b->setup_fd);
    end_pid1(b, 1);
    int back = is_away ? go_back(b) : 0;
    return fail(b, step, back < 0 ? back : ret);
}

/* Waits until pid 1 says that it is up, so that the next word from it is its last. */
static int await_up(nsbox_branch *b)
{
    nsbox_word word;
    struct pollfd fd = {.fd = b->says_fd, .events = POLLIN};
    for (;;) {
        long n = sys_read(b->says_fd, &word, sizeof word);
        if (n != -EAGAIN && n != -EINTR)
            return n < 0 ? (int)n : n == sizeof word ? 0 : -ESRCH;
        sys_ppoll(&fd, 1, 0);
    }
}

int32_t nsbox_branch_end(nsbox_branch *b, int32_t has_forked)
{
    const uint8_t go = NSBOX_GO | (b->request->uid_map2 ? NSBOX_HAS_ONE_ID : 0); /* see abi_branch.h */
    int ret = go_back(b);
    uint32_t step = NSBOX_STEP_JOIN;
    if (has_forked && ret >= 0) {
        step = NSBOX_STEP_INIT;
        ret = write_all(b->setup_fd, &go, 1); /* now it can find pid 2 */
        if (ret >= 0)
            ret = await_up(b);
    }
    close_end(&b->setup_fd);
    if (!has_forked || ret < 0)
        end_pid1(b, !has_forked);
    return ret < 0 ? fail(b, step, ret) : 0;
}

/* What keeps a fork's siblings away from it: <linux/landlock.h>. */
enum { SCOPED_ABI = 6, SCOPE_ABSTRACT = 1, SCOPE_SIGNAL = 2 };

int32_t nsbox_branch_fork(void)
{
    const struct {
        uint64_t files, net, scoped;
    } scopes = {0, 0, SCOPE_ABSTRACT | SCOPE_SIGNAL};
    int ret = sys_setsid();
    if (ret >= 0)
        ret = sys_prctl(PR_SET_CHILD_SUBREAPER, 1, 0); /* its orphans stay below it, where they can be found */
    if (ret >= 0)
        ret = sys_prctl(PR_SET_DUMPABLE, 0, 0); /* no other process of this user may look at it or trace it */
    if (ret < 0)
        return ret;
    int abi = sys_landlock_create_ruleset(0, 0, 1 /* LANDLOCK_CREATE_RULESET_VERSION */);
    if (abi < SCOPED_ABI) /* also if there is no Landlock */
        return 0;
    int ruleset = sys_landlock_create_ruleset(&scopes, sizeof scopes, 0);
    if (ruleset < 0)
        return ruleset;
    ret = sys_landlock_restrict_self(ruleset);
    sys_close(ruleset);
    return ret;
}
