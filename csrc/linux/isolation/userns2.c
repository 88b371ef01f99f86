/* userns2.c: makes, maps and enters the command's last user namespace, the second one. */
#include "isolation.h"

static void await_word(const uint32_t *word, uint32_t as_long_as)
{
    static const int64_t fifty_ms[2] = {0, 50000000};
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == as_long_as)
        sys_futex_wait(word, as_long_as, fifty_ms);
}

static void set_userns2(struct job *j, enum userns2 how_far)
{
    __atomic_store_n(&j->userns2.state, how_far, __ATOMIC_RELEASE);
    sys_futex_wake(&j->userns2.state);
}

/* Is the command dead, or has it given up? In a namespace that counts from 1, it is looked up by its number there. */
static int command_is_gone(const struct job *j, int *pidfd)
{
    static const int64_t at_once[2] = {0, 0};
    int made = __atomic_load_n(&j->command.is_made, __ATOMIC_ACQUIRE) && !forks(j->req);
    if (__atomic_load_n(&j->res->error, __ATOMIC_ACQUIRE) ||
        (made && !__atomic_load_n(&j->command.tid, __ATOMIC_ACQUIRE)))
        return 1;
    if (*pidfd < 0 && j->res->pid > 0 && j->req->pid_fd < 0) /* in a joined namespace its number isn't known */
        *pidfd = sys_pidfd_open(j->req->flags & NSBOX_AS_INIT ? 1 : has_init(j) ? 3 : j->res->pid);
    struct pollfd fd = {.fd = *pidfd, .events = POLLIN};
    return *pidfd >= 0 && sys_ppoll(&fd, 1, at_once) > 0;
}

/* Once the command is in its second user namespace, mapping several ids for it requires capabilities in the first.
 * This process has them. */
static void map2_helper(void *arg)
{
    static const int64_t fifty_ms[2] = {0, 50000000};
    struct job *j = arg;
    int command = -1;
    sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    while (__atomic_load_n(&j->userns2.state, __ATOMIC_ACQUIRE) == USERNS2_NONE) {
        int given_up = __atomic_load_n(&j->gate, __ATOMIC_ACQUIRE) == GATE_ABORT;
        if (given_up || command_is_gone(j, &command) ||
            caller_is_gone(j)) /* also if it ended before our death signal was set */
            sys_exit(0);
        sys_futex_wait(&j->userns2.state, USERNS2_NONE, fifty_ms);
    }
    if (__atomic_load_n(&j->userns2.state, __ATOMIC_ACQUIRE) != USERNS2_ENTERED)
        sys_exit(0);
    char path[32];
    put_str(put_uint(path, (uint64_t)j->res->pid, 10), "/");
    j->userns2.error = write_maps(j->b.proc, path, j->req->uid_map2, j->req->gid_map2,
                                  how_to_map(j->req) & MAPS_PATIENT, &j->userns2.step);
    __atomic_store_n(&j->userns2.state, USERNS2_MAPPED, __ATOMIC_RELEASE);
    sys_futex_wake(&j->userns2.state);
    sys_exit(0);
}

int start_map2_helper(struct job *j)
{
    if (!(j->req->flags & NSBOX_MAP2_BY_HELPER))
        return 0;
    TRY(&j->b, NSBOX_STEP_SECOND_USERNS, clone_sharer(&j->helper, 0, j->stacks.helper, map2_helper, j));
    return 0;
}

void await_map2_helper(struct job *j)
{
    if (!(j->req->flags & NSBOX_MAP2_BY_HELPER) || j->helper.pid <= 0)
        return;
    if (forks(j->req)) { /* then the command has executed, or ended */
        uint32_t none = USERNS2_NONE;
        __atomic_compare_exchange_n(&j->userns2.state, &none, USERNS2_MAPPED, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        sys_futex_wake(&j->userns2.state);
    }
    while (sys_waitid(P_PID, j->helper.pid, 0, WEXITED | __WALL) == -EINTR)
        continue;
}

static int await_maps(struct job *j, uint32_t *step)
{
    __atomic_store_n(&j->userns2.state, USERNS2_ENTERED, __ATOMIC_RELEASE);
    sys_futex_wake(&j->userns2.state);
    static const int64_t fifty_ms[2] = {0, 50000000};
    while (__atomic_load_n(&j->userns2.state, __ATOMIC_ACQUIRE) == USERNS2_ENTERED) {
        int alive = __atomic_load_n(&j->helper.tid, __ATOMIC_ACQUIRE) != 0;
        if (!alive && __atomic_load_n(&j->userns2.state, __ATOMIC_ACQUIRE) == USERNS2_ENTERED)
            return -ESRCH; /* killed from outside */
        sys_futex_wait(&j->userns2.state, USERNS2_ENTERED, fifty_ms);
    }
    if (j->userns2.error < 0)
        *step = j->userns2.step;
    return j->userns2.error;
}

/* Stays in the namespace while another process writes its maps. */
static void userns2_maker(void *arg)
{
    struct job *j = arg;
    sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    j->userns2.error = sys_unshare(CLONE_NEWUSER);
    set_userns2(j, USERNS2_ENTERED);
    while (__atomic_load_n(&j->userns2.state, __ATOMIC_ACQUIRE) == USERNS2_ENTERED && !caller_is_gone(j))
        await_word(&j->userns2.state, USERNS2_ENTERED);
    sys_exit(0);
}

static int map_userns2(struct job *j)
{
    while (__atomic_load_n(&j->userns2.state, __ATOMIC_ACQUIRE) == USERNS2_NONE) {
        if (!__atomic_load_n(&j->helper.tid, __ATOMIC_ACQUIRE))
            return -ESRCH; /* killed from outside */
        await_word(&j->userns2.state, USERNS2_NONE);
    }
    if (j->userns2.error < 0)
        return j->userns2.error;
    char path[48], *tail = put_str(put_uint(path, (uint64_t)j->helper.pid, 10), "/");
    int ret =
        write_maps(j->b.proc, path, j->req->uid_map2, j->req->gid_map2, how_to_map(j->req) & MAPS_PATIENT, &j->b.step);
    put_str(tail, "ns/user");
    return ret < 0 ? ret : sys_openat(j->b.proc, path, O_RDONLY, 0);
}

/* Makes the last user namespace of one command. Each must have its own: in a shared one, a process that sees another
 * through any procfs or pidfd may trace it, and before the other's exec that would be the caller's memory. */
int make_userns2(struct job *j)
{
    TRY(&j->b, NSBOX_STEP_SECOND_USERNS, clone_sharer(&j->helper, 0, j->stacks.helper, userns2_maker, j));
    int ret = map_userns2(j);
    set_userns2(j, USERNS2_MAPPED);
    while (sys_waitid(P_PID, j->helper.pid, 0, WEXITED | __WALL) == -EINTR)
        continue;
    j->userns2.fd = ret;
    return ret < 0 ? ret : 0;
}

/* Enters a user namespace with the wished ids. It is a second one, since some mounts (devpts) need uid 0 in the
 * first. What was mounted there can't be changed from here, whatever capabilities a process may get. A command that
 * keeps some gets a copy of its mounts, in which their properties are locked (mount_namespaces(7)). "self" in the
 * caller's procfs is the command, though the root where that was mounted has gone. */
int enter_second_userns(struct job *j, uint32_t *step)
{
    const nsbox_request *r = j->req;
    *step = NSBOX_STEP_SECOND_USERNS;
    int userns = j->userns2.fd >= 0 ? j->userns2.fd : r->user2_fd;
    int ret = userns >= 0 ? sys_setns(userns, CLONE_NEWUSER)
                          : sys_unshare(CLONE_NEWUSER | (r->caps ? (unsigned long)CLONE_NEWNS : 0));
    if (ret < 0 || userns >= 0)
        return ret;
    if (r->flags & NSBOX_MAP2_BY_HELPER)
        return await_maps(j, step);
    return write_maps(j->b.proc, "self/", r->uid_map2, r->gid_map2, how_to_map(r) & MAPS_PATIENT, step);
}

/* Checks that no user namespace can be made, by trying: a limit may be set anywhere above. It tries with the
 * command's ids, since others could be refused. */
int check_no_userns(const nsbox_request *r, uint32_t *step)
{
    *step = NSBOX_STEP_LIMIT_USERNS;
    return r->flags & NSBOX_NO_USERNS && sys_unshare(CLONE_NEWUSER) >= 0 ? -EEXIST : 0;
}
