/* namespaces.c: entering the namespaces, and saying who is who in the user namespace. */
#include "job/job.h"

static int write_file(int dir, const char *path, const char *text)
{
    size_t n = 0;
    while (text[n])
        n++;
    int fd = sys_openat(dir, path, O_WRONLY, 0);
    if (fd < 0)
        return fd;
    /* The kernel takes a map in one write only. */
    long done = sys_write(fd, text, n);
    sys_close(fd);
    if (done < 0)
        return (int)done;
    return (size_t)done == n ? 0 : -EIO;
}

/* For moments in which another thread's mediator changes its ids, our memory isn't dumpable, and a process's files in procfs
 * are root's: see kernel_id.c. */
static int write_map(int dir, const char *path, const char *text, int is_patient)
{
    int ret = write_file(dir, path, text);
    for (int i = 0; i < LOOKS && ret == -EACCES && is_patient; i++) {
        pause_look(i);
        ret = write_file(dir, path, text);
    }
    return ret;
}

/* Writes the maps of the process whose /proc directory is at `path`, below dir. */
int write_maps(int dir, const char *path, const char *uids, const char *gids, unsigned how, uint32_t *step)
{
    int is_patient = (how & MAPS_PATIENT) != 0;
    char file[64];
    char *tail = put_str(file, path);
    if (how & MAPS_DENY) { /* user_namespaces(7): required before an unprivileged gid map, CVE-2014-8989 */
        *step = NSBOX_STEP_SETGROUPS;
        put_str(tail, "setgroups");
        int ret = write_map(dir, file, "deny", is_patient);
        if (ret < 0)
            return ret;
    }
    *step = NSBOX_STEP_UID_MAP;
    put_str(tail, "uid_map");
    int ret = write_map(dir, file, uids, is_patient);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_GID_MAP;
    put_str(tail, "gid_map");
    return write_map(dir, file, gids, is_patient);
}

struct map_helper {
    struct job *job;
    int pid; /* the mediator's */
    int pipe[2];
};

enum { MAX_MAP_ARGS = 32 };

struct map_program {
    const char *argv[MAX_MAP_ARGS + 1];
    int error;
};

static void exec_program(void *arg)
{
    static const char *const no_environment[] = {0};
    struct map_program *m = arg;
    m->error = sys_execve(m->argv[0], m->argv, no_environment);
}

/* Runs newuidmap(1) or its sibling, which are allowed to map the subordinate ids that subuid(5) gives the user. */
static int run_map_program(struct map_helper *h, const char *const *argv)
{
    struct map_program m; /* no initializer: compilers make it a call of memset */
    m.error = 0;
    char pid[24];
    put_uint(pid, (uint64_t)h->pid, 10);
    unsigned n = 0;
    for (; argv[n] && n < MAX_MAP_ARGS; n++)
        m.argv[n] = n == 1 ? pid : argv[n];
    m.argv[n] = 0;
    /* The init's stack: there is no init yet. */
    long child = clone_sharer(&h->job->map_program, CLONE_VFORK, h->job->init_stack, exec_program, &m);
    if (child < 0)
        return (int)child;
    int32_t info[32];
    info[2] = info[6] = 0;
    int ret = sys_waitid(P_PID, (int)child, info, WEXITED | __WALL);
    if (ret < 0 || m.error)
        return ret < 0 ? ret : m.error;
    return info[2] == 1 && info[6] == 0 ? 0 : -EPERM; /* si_code CLD_EXITED, si_status */
}

static int map_by_programs(struct map_helper *h, uint32_t *step)
{
    *step = NSBOX_STEP_UID_MAP;
    int ret = run_map_program(h, h->job->req->uid_map_program);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_GID_MAP;
    return run_map_program(h, h->job->req->gid_map_program);
}

/* Maps of more than one id need capabilities in the parent namespace: this process stays there. */
static void map_helper(void *arg)
{
    struct map_helper *h = arg;
    struct job *j = h->job;
    sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    sys_close(h->pipe[1]);
    char byte;
    if (sys_read(h->pipe[0], &byte, 1) != 1)
        sys_exit(1); /* the mediator gave up or died */
    if (j->req->uid_map_program) {
        j->map_error = map_by_programs(h, &j->map_step);
        sys_exit(0);
    }
    char path[32];
    put_str(put_uint(put_str(path, "/proc/"), (uint64_t)h->pid, 10), "/");
    j->map_error = write_maps(AT_FDCWD, path, j->req->uid_map, j->req->gid_map, how_to_map(j->req), &j->map_step);
    sys_exit(0);
}

/* The net namespace takes longer than all others together: the init makes it meanwhile. */
static unsigned long own_namespaces(const nsbox_request *r)
{
    return r->namespaces & ~(unsigned long)(CLONE_NEWNET | (is_below(r) ? CLONE_NEWPID : 0));
}

static int unshare_with_helper(struct job *j)
{
    struct map_helper h = {.job = j, .pid = sys_getpid()};
    TRY(&j->b, NSBOX_STEP_UID_MAP, sys_pipe2(h.pipe, SYS_O_CLOEXEC));
    long helper = clone_sharer(&j->helper, 0, j->command_stack, map_helper, &h);
    int ret = (int)helper;
    if (ret >= 0) {
        j->b.step = NSBOX_STEP_UNSHARE;
        ret = sys_unshare(own_namespaces(j->req));
        j->map_error = -EIO;
        j->map_step = NSBOX_STEP_UID_MAP;
        if (ret >= 0)
            sys_write(h.pipe[1], "", 1);
    }
    sys_close(h.pipe[1]);
    sys_close(h.pipe[0]);
    if (helper < 0)
        return (int)helper;
    sys_waitid(P_PID, (int)helper, 0, WEXITED | __WALL);
    if (ret < 0)
        return ret;
    j->b.step = j->map_step;
    return j->map_error;
}

/* Namespaces of the caller's choice. Our children will be in the pid namespace, with processes that nobody here trusts,
 * and with the caller's memory: which mustn't be traceable then (CVE-2016-9962). */
static int join_namespaces(struct job *j)
{
    const nsbox_request *r = j->req;
    if (r->pid_fd >= 0)
        TRY(&j->b, NSBOX_STEP_JOIN, sys_prctl(PR_GET_DUMPABLE, 0, 0) == 0 ? 0 : -EPERM);
    /* Who has power over both may do it from here; others have it in the user namespace only, from where, in turn, one
     * above its pid namespace can't be joined. */
    int joined = r->pid_fd >= 0 && sys_setns(r->pid_fd, CLONE_NEWPID) >= 0;
    if (r->user_fd >= 0)
        TRY(&j->b, is_warm(r) ? NSBOX_STEP_STALE : NSBOX_STEP_JOIN, sys_setns(r->user_fd, CLONE_NEWUSER));
    if (r->pid_fd >= 0 && !joined)
        TRY(&j->b, NSBOX_STEP_JOIN, sys_setns(r->pid_fd, CLONE_NEWPID));
    /* By the init's pidfd: who has power over the user namespace has it over the init, which isn't dumpable. */
    if (is_parked(r))
        TRY(&j->b, NSBOX_STEP_STALE, sys_setns(r->park_fd, (int)(r->namespaces & ~(uint64_t)CLONE_NEWCGROUP)));
    else if (r->mnt_fd >= 0)
        TRY(&j->b, is_warm(r) ? NSBOX_STEP_STALE : NSBOX_STEP_JOIN, sys_setns(r->mnt_fd, CLONE_NEWNS));
    return 0;
}

int enter_namespaces(struct job *j)
{
    const nsbox_request *r = j->req;
    if (r->flags & NSBOX_DROP_GROUPS)
        TRY(&j->b, NSBOX_STEP_GROUPS, sys_setgroups(0, 0));
    int ret = join_namespaces(j);
    if (ret < 0)
        return ret;
    if (r->flags & NSBOX_MAP_BY_HELPER && r->user_fd < 0)
        return unshare_with_helper(j);
    if (is_warm(r) && !is_parked(r)) { /* before there is a pid namespace, in which the command has a certain number */
        ret = make_userns2(j);
        if (ret < 0) {
            j->b.step = NSBOX_STEP_STALE; /* who starts anew has other ways to write maps, and to say what is wrong */
            return ret;
        }
    }
    TRY(&j->b, NSBOX_STEP_UNSHARE, sys_unshare(is_parked(r) ? r->namespaces & CLONE_NEWCGROUP : own_namespaces(r)));
    if (r->user_fd >= 0 || r->flags & NSBOX_HOLD_MAPS)
        return 0;
    return write_maps(AT_FDCWD, "/proc/self/", r->uid_map, r->gid_map, how_to_map(r), &j->b.step);
}

/* The second user namespace is the last below this one (namespaces(7), /proc/sys/user): who is in it can set a limit of its
 * own, but not this one. */
int limit_userns(struct job *j)
{
    TRY(&j->b, NSBOX_STEP_LIMIT_USERNS, write_file(j->b.proc, "sys/user/max_user_namespaces", "1"));
    return 0;
}

/* The kernel counts a user's instances in each user namespace, and those above; a limit in ours is one for the sandbox. What
 * is in it can't lift it: its last namespace is another, or procfs's settings are read-only there. */
int limit_inotify(struct job *j)
{
    const nsbox_request *r = j->req;
    if (!r->inotify_instances || r->user_fd >= 0) /* a template's has it */
        return 0;
    char text[24];
    put_uint(text, r->inotify_instances, 10);
    TRY(&j->b, NSBOX_STEP_INOTIFY, write_file(j->b.proc, "sys/user/max_inotify_instances", text));
    return 0;
}

/* Is the command dead, or has it given up? Its number is the one that it has here, where a namespace counts anew. */
static int command_is_gone(const struct job *j, int *pidfd)
{
    static const int64_t at_once[2] = {0, 0};
    int made = __atomic_load_n(&j->command_made, __ATOMIC_ACQUIRE) && !forks(j->req);
    if (__atomic_load_n(&j->res->error, __ATOMIC_ACQUIRE) ||
        (made && !__atomic_load_n(&j->command_tid, __ATOMIC_ACQUIRE)))
        return 1;
    if (*pidfd < 0 && j->res->pid > 0 && j->req->pid_fd < 0) /* in one that was joined nobody knows its number */
        *pidfd = sys_pidfd_open(j->req->flags & NSBOX_AS_INIT ? 1 : has_init(j) ? 3 : j->res->pid);
    struct pollfd fd = {.fd = *pidfd, .events = POLLIN};
    return *pidfd >= 0 && sys_ppoll(&fd, 1, at_once) > 0;
}

/* Who may map several ids for the command, once that is in its second user namespace, has capabilities in the first. */
static void map2_helper(void *arg)
{
    static const int64_t fifty_ms[2] = {0, 50000000};
    struct job *j = arg;
    int command = -1;
    sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    while (__atomic_load_n(&j->userns2, __ATOMIC_ACQUIRE) == USERNS2_NONE) {
        int given_up = __atomic_load_n(&j->gate, __ATOMIC_ACQUIRE) == GATE_ABORT;
        if (given_up || command_is_gone(j, &command) || caller_is_gone(j)) /* before our death signal was set, too */
            sys_exit(0);
        sys_futex_wait(&j->userns2, USERNS2_NONE, fifty_ms);
    }
    if (__atomic_load_n(&j->userns2, __ATOMIC_ACQUIRE) != USERNS2_ENTERED)
        sys_exit(0);
    char path[32];
    put_str(put_uint(path, (uint64_t)j->res->pid, 10), "/");
    j->map2_error = write_maps(j->b.proc, path, j->req->uid_map2, j->req->gid_map2, how_to_map(j->req) & MAPS_PATIENT,
                               &j->map2_step);
    __atomic_store_n(&j->userns2, USERNS2_MAPPED, __ATOMIC_RELEASE);
    sys_futex_wake(&j->userns2);
    sys_exit(0);
}

int start_map2_helper(struct job *j)
{
    if (!(j->req->flags & NSBOX_MAP2_BY_HELPER))
        return 0;
    TRY(&j->b, NSBOX_STEP_SECOND_USERNS, clone_sharer(&j->helper, 0, j->helper_stack, map2_helper, j));
    return 0;
}

void await_map2_helper(struct job *j)
{
    if (!(j->req->flags & NSBOX_MAP2_BY_HELPER) || j->helper.pid <= 0)
        return;
    if (forks(j->req)) { /* then that has executed, or ended */
        uint32_t none = USERNS2_NONE;
        __atomic_compare_exchange_n(&j->userns2, &none, USERNS2_MAPPED, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
        sys_futex_wake(&j->userns2);
    }
    while (sys_waitid(P_PID, j->helper.pid, 0, WEXITED | __WALL) == -EINTR)
        continue;
}

static int await_maps(struct job *j, uint32_t *step)
{
    __atomic_store_n(&j->userns2, USERNS2_ENTERED, __ATOMIC_RELEASE);
    sys_futex_wake(&j->userns2);
    static const int64_t fifty_ms[2] = {0, 50000000};
    while (__atomic_load_n(&j->userns2, __ATOMIC_ACQUIRE) == USERNS2_ENTERED) {
        int alive = __atomic_load_n(&j->helper.tid, __ATOMIC_ACQUIRE) != 0;
        if (!alive && __atomic_load_n(&j->userns2, __ATOMIC_ACQUIRE) == USERNS2_ENTERED)
            return -ESRCH; /* killed from outside */
        sys_futex_wait(&j->userns2, USERNS2_ENTERED, fifty_ms);
    }
    if (j->map2_error < 0)
        *step = j->map2_step;
    return j->map2_error;
}

/* The wished ids in a namespace of their own, since some mounts (devpts) need uid 0 in the first. What was
 * mounted there can't be changed from here, whatever capabilities a process may get; one that keeps some gets its
 * mounts as a copy, in which what they are is locked (mount_namespaces(7)). "self" in the caller's procfs is the
 * command, though the root that it was mounted in has gone. */
int enter_second_userns(struct job *j, uint32_t *step)
{
    const nsbox_request *r = j->req;
    *step = NSBOX_STEP_SECOND_USERNS;
    int given = j->userns2_fd >= 0 ? j->userns2_fd : r->user2_fd;
    int ret = given >= 0 ? sys_setns(given, CLONE_NEWUSER)
                         : sys_unshare(CLONE_NEWUSER | (r->caps ? (unsigned long)CLONE_NEWNS : 0));
    if (ret < 0 || given >= 0)
        return ret;
    if (r->flags & NSBOX_MAP2_BY_HELPER)
        return await_maps(j, step);
    return write_maps(j->b.proc, "self/", r->uid_map2, r->gid_map2, how_to_map(r) & MAPS_PATIENT, step);
}

/* Tried, since a limit may be set anywhere above; with the ids that the command has, since others could be refused. */
int check_no_userns(const nsbox_request *r, uint32_t *step)
{
    *step = NSBOX_STEP_LIMIT_USERNS;
    return r->flags & NSBOX_NO_USERNS && sys_unshare(CLONE_NEWUSER) >= 0 ? -EEXIST : 0;
}
