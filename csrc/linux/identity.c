/* identity.c: entering the namespaces, and saying who is who in the user namespace. */
#include "child.h"

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

/* Writes the maps of the process whose /proc directory is at `path`, below dir. */
static int write_maps(int dir, const char *path, const char *uids, const char *gids, int deny, uint32_t *step)
{
    char file[64];
    char *tail = put_str(file, path);
    if (deny) { /* user_namespaces(7): required before an unprivileged gid map, CVE-2014-8989 */
        *step = NSBOX_STEP_SETGROUPS;
        put_str(tail, "setgroups");
        int ret = write_file(dir, file, "deny");
        if (ret < 0)
            return ret;
    }
    *step = NSBOX_STEP_UID_MAP;
    put_str(tail, "uid_map");
    int ret = write_file(dir, file, uids);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_GID_MAP;
    put_str(tail, "gid_map");
    return write_file(dir, file, gids);
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
    j->map_error = write_maps(AT_FDCWD, path, j->req->uid_map, j->req->gid_map,
                              (j->req->flags & NSBOX_DENY_SETGROUPS) != 0, &j->map_step);
    sys_exit(0);
}

static int unshare_with_helper(struct job *j)
{
    struct map_helper h = {.job = j, .pid = sys_getpid()};
    TRY(&j->b, NSBOX_STEP_UID_MAP, sys_pipe2(h.pipe, SYS_O_CLOEXEC));
    long helper = clone_sharer(&j->helper, 0, j->command_stack, map_helper, &h);
    int ret = (int)helper;
    if (ret >= 0) {
        j->b.step = NSBOX_STEP_UNSHARE;
        ret = sys_unshare(j->req->namespaces & ~(unsigned long)CLONE_NEWNET);
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

/* All but the net namespace, which takes longer than all others together: the init makes it meanwhile. */
int enter_namespaces(struct job *j)
{
    const nsbox_request *r = j->req;
    if (r->flags & NSBOX_DROP_GROUPS)
        TRY(&j->b, NSBOX_STEP_GROUPS, sys_setgroups(0, 0));
    int ret;
    if (r->flags & NSBOX_MAP_BY_HELPER) {
        ret = unshare_with_helper(j);
    } else {
        TRY(&j->b, NSBOX_STEP_UNSHARE, sys_unshare(r->namespaces & ~(unsigned long)CLONE_NEWNET));
        ret = write_maps(AT_FDCWD, "/proc/self/", r->uid_map, r->gid_map, (r->flags & NSBOX_DENY_SETGROUPS) != 0,
                         &j->b.step);
    }
    return ret;
}

/* The wished ids in a namespace of their own, since some mounts (devpts) need uid 0 in the first. What was
 * mounted there can't be changed from here, whatever capabilities a process may get. "self" in the
 * caller's procfs is the command, though the root that it was mounted in has gone. */
int enter_second_userns(struct job *j, uint32_t *step)
{
    const nsbox_request *r = j->req;
    *step = NSBOX_STEP_SECOND_USERNS;
    int ret = sys_unshare(CLONE_NEWUSER);
    return ret < 0 ? ret : write_maps(j->b.proc, "self/", r->uid_map2, r->gid_map2, 0, step);
}
