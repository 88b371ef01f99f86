/* maps.c: maps a user namespace's ids to those outside; the maps are written by the process itself, by a helper, or
 * by newuidmap(1). */
#include "isolation.h"

int write_file(int dir, const char *path, const char *text)
{
    size_t n = 0;
    while (text[n])
        n++;
    int fd = sys_openat(dir, path, O_WRONLY, 0);
    if (fd < 0)
        return fd;
    /* The kernel accepts a map only in a single write. */
    long done = sys_write(fd, text, n);
    sys_close(fd);
    if (done < 0)
        return (int)done;
    return (size_t)done == n ? 0 : -EIO;
}

/* Writes one map. While another thread's mediator changes its ids, our memory isn't dumpable for a moment, and a
 * process's files in procfs belong to root: see kernel_id.c. So a patient caller tries again. */
static int write_map(int dir, const char *path, const char *text, int is_patient)
{
    int ret = write_file(dir, path, text);
    for (int i = 0; i < LOOKS && ret == -EACCES && is_patient; i++) {
        pause_look(i);
        ret = write_file(dir, path, text);
    }
    return ret;
}

/* Writes the maps of the process whose /proc directory is at `path`, below dir. 0 or -errno; *step says which file
 * failed. */
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

/* Runs newuidmap(1) or newgidmap(1), which may map the subordinate ids that subuid(5) gives the user. */
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
    long child = clone_sharer(&h->job->map_program, CLONE_VFORK, h->job->stacks.init, exec_program, &m);
    if (child < 0)
        return (int)child;
    int32_t info[SI_WORDS];
    info[SI_CODE] = info[SI_STATUS] = 0;
    int ret = sys_waitid(P_PID, (int)child, info, WEXITED | __WALL);
    if (ret < 0 || m.error)
        return ret < 0 ? ret : m.error;
    return info[SI_CODE] == SI_EXITED && info[SI_STATUS] == 0 ? 0 : -EPERM;
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

/* Maps of more than one id need capabilities in the parent namespace, so this process stays there. */
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
        j->maps.error = map_by_programs(h, &j->maps.step);
        sys_exit(0);
    }
    char path[32];
    put_str(put_uint(put_str(path, "/proc/"), (uint64_t)h->pid, 10), "/");
    j->maps.error = write_maps(AT_FDCWD, path, j->req->uid_map, j->req->gid_map, how_to_map(j->req), &j->maps.step);
    sys_exit(0);
}

int unshare_with_helper(struct job *j, unsigned long namespaces)
{
    struct map_helper h = {.job = j, .pid = sys_getpid()};
    TRY(&j->b, NSBOX_STEP_UID_MAP, sys_pipe2(h.pipe, SYS_O_CLOEXEC));
    long helper = clone_sharer(&j->helper, 0, j->stacks.command, map_helper, &h);
    int ret = (int)helper;
    if (ret >= 0) {
        j->b.step = NSBOX_STEP_UNSHARE;
        ret = sys_unshare(namespaces);
        j->maps.error = -EIO;
        j->maps.step = NSBOX_STEP_UID_MAP;
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
    j->b.step = j->maps.step;
    return j->maps.error;
}
