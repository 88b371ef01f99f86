/* kernel_id.c: kernel ids of the sandbox's own, for a caller that may choose any. They are set before there is a
 * user namespace, so that everything made later belongs to an ordinary user.
 *
 * Credentials are each process's own, but commit_creds() resets the dumpable flag, which belongs to the memory, and
 * the memory is the caller's. So the flag is put back at once. It is wrong for three system calls, which only one
 * process makes at a time: another that looked meanwhile would take it for the caller's wish.
 */
#include "isolation.h"
#include "calls.h"

enum { DUMPABLE = 1 };

/* Which process is changing its ids, or 0. The upper half is the caller; the lower is its mediator or one of its
 * threads. In a copy of the caller's memory, made by fork(2), the word belongs to no process any more. */
static uint64_t holder;

static int is_of(uint64_t word, int caller)
{
    return word >> 32 == (uint32_t)caller;
}

/* The pause between two looks at something that another process holds for a moment. At first it yields to others.
 * Where many wait for a processor that isn't enough, so it sleeps: five seconds in all. */
void pause_look(int look)
{
    static const int64_t one_ms[2] = {0, 1000000};
    if (look < LOOKS - 5000)
        sys_sched_yield();
    else
        sys_ppoll(0, 0, one_ms);
}

static int take(int caller, int pid)
{
    uint64_t mine = (uint64_t)(uint32_t)caller << 32 | (uint32_t)pid;
    for (int i = 0; i < LOOKS; i++) {
        uint64_t value = __atomic_load_n(&holder, __ATOMIC_ACQUIRE);
        int is_free = !is_of(value, caller);
        if (is_free && __atomic_compare_exchange_n(&holder, &value, mine, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return 0;
        pause_look(i);
    }
    return -EBUSY;
}

static void let_go(void)
{
    __atomic_store_n(&holder, 0, __ATOMIC_RELEASE);
}

/* For a fork by this thread: the child would keep the flag as it is at this moment, for good. */
int nsbox_hold_ids(void)
{
    return take(sys_getpid(), sys_gettid());
}

void nsbox_release_ids(void)
{
    uint64_t mine = (uint64_t)(uint32_t)sys_getpid() << 32 | (uint32_t)sys_gettid();
    if (__atomic_load_n(&holder, __ATOMIC_ACQUIRE) == mine)
        let_go();
}

/* For a forked child, which may have its parent's number in a pid namespace of its own. */
void nsbox_forget_ids(void)
{
    let_go();
}

int nsbox_dumpable(void)
{
    int ret = take(sys_getpid(), sys_gettid());
    if (ret < 0)
        return ret;
    ret = sys_prctl(PR_GET_DUMPABLE, 0, 0);
    let_go();
    return ret;
}

/* SECBIT_NO_SETUID_FIXUP keeps the capabilities, which are needed next to make or enter namespaces. There they are
 * replaced (set_cred_user_ns), and so are the bits. */
static int change(const nsbox_request *r)
{
    int ret = sys_prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0);
    if (ret >= 0)
        ret = sys_setresgid(r->kernel_gid, r->kernel_gid, r->kernel_gid);
    if (ret >= 0)
        ret = sys_setresuid(r->kernel_uid, r->kernel_uid, r->kernel_uid);
    return ret;
}

/* Runs in the mediator. If the memory isn't dumpable, the mediator's own files in procfs belong to another user, and
 * it can't write its maps. */
int take_kernel_ids(struct job *j)
{
    if (!j->req->kernel_uid)
        return 0;
    TRY(&j->b, NSBOX_STEP_KERNEL_ID, take(j->caller, sys_getpid()));
    int ret = sys_prctl(PR_GET_DUMPABLE, 0, 0) == DUMPABLE ? 0 : -EPERM;
    if (ret >= 0) {
        ret = change(j->req);
        sys_prctl(PR_SET_DUMPABLE, DUMPABLE, 0);
    }
    let_go();
    return ret;
}

/* Runs in the caller, when its mediator has gone. Puts the flag back if the mediator was killed before it could. */
void restore_dumpable(const struct job *j, int mediator)
{
    uint64_t word = (uint64_t)(uint32_t)j->caller << 32 | (uint32_t)mediator;
    if (!j->req->kernel_uid || __atomic_load_n(&holder, __ATOMIC_ACQUIRE) != word)
        return;
    sys_prctl(PR_SET_DUMPABLE, DUMPABLE, 0);
    let_go();
}

/* A pipe that the caller made belongs to it, mode 0600. "> /dev/stderr" opens it again, which is refused to any
 * other user. The only names that lead to it are in /proc/PID/fd, and using those requires permission to trace the
 * process that has the pipe. So the mode adds only this: a process with one end can open the other. Another user's
 * pipe stays as it is. */
static void open_to_all(int fd)
{
    struct sys_statx st;
    if (fd < 0 || sys_statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_MODE | STATX_UID, &st) < 0)
        return;
    if ((st.stx_mode & SYS_S_IFMT) == SYS_S_IFIFO && st.stx_uid == 0 && sys_is_anonymous_pipe(fd))
        sys_fchmod(fd, 0666);
}

void share_pipes(const nsbox_request *r)
{
    if (!r->kernel_uid)
        return;
    const int32_t stdio[] = {r->stdin_fd, r->stdout_fd, r->stderr_fd};
    for (int i = 0; i < 3; i++)
        open_to_all(stdio[i] == -1 ? i : stdio[i]);
    for (uint32_t i = 0; i < r->n_pass_fds; i++)
        open_to_all(r->pass_fds[i]);
}
