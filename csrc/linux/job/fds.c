/* fds.c: which descriptors each process of a spawn has: the mediator, which makes room; the command, which keeps
 * only its own. */
#include "job.h"

static int is_open(const struct job *j, int fd)
{
    int is_ours = fd == j->lifeline || fd == j->init.says[0] || fd == j->init.says[1] || fd == j->setup_pipe[0] ||
                  fd == j->setup_pipe[1] || fd == j->kept_pair[0] || fd == j->kept_pair[1];
    for (uint32_t i = 0; i < j->req->n_idmaps; i++)
        is_ours |= fd == j->req->idmaps[i].userns_fd;
    return fd < 0 ? 0 : is_ours ? -EBADF : sys_get_fd_flags(fd);
}

/* Checks the caller's descriptors before we open any: a number that the caller has closed would soon be one of ours. */
static int check_fds(struct job *j, int32_t *op)
{
    const nsbox_request *r = j->req;
    TRY(&j->b, NSBOX_STEP_STDIO, is_open(j, r->stdin_fd));
    TRY(&j->b, NSBOX_STEP_STDIO, is_open(j, r->stdout_fd));
    TRY(&j->b, NSBOX_STEP_STDIO, is_open(j, r->stderr_fd));
    for (uint32_t i = 0; i < r->n_pass_fds; i++)
        TRY(&j->b, NSBOX_STEP_FDS, is_open(j, r->pass_fds[i]));
    const int32_t joined[] = {r->user_fd,  r->user2_fd, r->pid_fd, r->mnt_fd,  r->null_fd,
                              r->image_fd, r->park_fd,  r->go_fd,  r->relay_fd};
    for (unsigned i = 0; i < sizeof joined / sizeof joined[0]; i++)
        TRY(&j->b, NSBOX_STEP_JOIN, is_open(j, joined[i]));
    for (uint32_t i = 0, n = plan_nops(r->plan); i < n; i++) {
        if (!(plan_op(r->plan, i)->flags & NSBOX_FROM_FD))
            continue;
        *op = (int32_t)i;
        TRY(&j->b, NSBOX_STEP_SOURCE, is_open(j, plan_op(r->plan, i)->fd));
    }
    *op = -1;
    return 0;
}

static void lower(int *least, int fd, int from)
{
    if (fd >= from && fd < *least)
        *least = fd;
}

/* The first descriptor from `from` up that we, the plan or the command need. */
static int next_needed(const struct job *j, int from)
{
    const nsbox_request *r = j->req;
    int least = INT32_MAX;
    lower(&least, j->lifeline, from);
    lower(&least, j->init.says[0], from);
    lower(&least, j->init.says[1], from);
    lower(&least, j->b.proc, from); /* these are needed only in the command's table */
    lower(&least, j->command.devnull, from);
    lower(&least, r->stdin_fd, from);
    lower(&least, r->stdout_fd, from);
    lower(&least, r->stderr_fd, from);
    for (uint32_t i = 0; i < r->n_idmaps; i++)
        lower(&least, r->idmaps[i].userns_fd, from);
    const int32_t requested[] = {
        r->user_fd,       r->user2_fd,      r->pid_fd,       r->hold_fd, r->report_fd, r->mnt_fd,   r->null_fd,
        j->setup_pipe[0], j->setup_pipe[1], j->kept_pair[1], r->park_fd, r->go_fd,     r->relay_fd, r->image_fd,
    };
    for (unsigned i = 0; i < sizeof requested / sizeof requested[0]; i++)
        lower(&least, requested[i], from);
    for (uint32_t i = 0; i < r->n_pass_fds; i++)
        lower(&least, r->pass_fds[i], from);
    for (uint32_t i = 0, n = plan_nops(r->plan); i < n; i++)
        if (plan_op(r->plan, i)->flags & NSBOX_FROM_FD)
            lower(&least, plan_op(r->plan, i)->fd, from);
    return least;
}

/* Our table is a copy, but its size is limited too. So what the command won't get makes room for our descriptors;
 * the command then closes those of ours that it has. */
int close_unneeded(struct job *j)
{
    const nsbox_request *r = j->req;
    if (!(r->flags & NSBOX_CLOSE_FDS) ||
        r->flags & NSBOX_PREEXEC) /* preexec_fn may use them: they are closed after it */
        return 0;
    for (int from = 3;;) {
        int needed = next_needed(j, from);
        if (needed == INT32_MAX)
            return sys_close_range((unsigned)from, ~0U);
        if (needed > from) {
            int ret = sys_close_range((unsigned)from, (unsigned)needed - 1);
            if (ret < 0)
                return ret;
        }
        from = needed + 1;
    }
}

/* Fills up what the caller has closed of 0 to 2, up to the exec: no descriptor of ours may have a number that the
 * command's stdio gets. */
static int fill_standard_fds(const struct job *j)
{
    int ret = 0;
    for (int fd = 0; fd < 3 && ret >= 0; fd++)
        if (sys_get_fd_flags(fd) < 0)
            ret = sys_dup3(j->lifeline, fd, SYS_O_CLOEXEC);
    return ret;
}

int take_descriptors(struct job *j, int32_t *op)
{
    int ret = check_fds(j, op);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_FDS, close_unneeded(j));
    TRY(&j->b, NSBOX_STEP_STDIO, fill_standard_fds(j));
    return 0;
}

int open_devnull(struct job *j)
{
    const nsbox_request *r = j->req;
    if (!wants_devnull(r) && !(r->flags & NSBOX_TEMPLATE))
        return 0;
    j->command.devnull = r->flags & NSBOX_PLAIN ? sys_openat(AT_FDCWD, "/dev/null", O_RDWR, 0)
                         : is_warm(r)           ? fs_reopen(&j->b, r->null_fd, O_RDWR)
                                                : fs_devnull(&j->b);
    TRY(&j->b, NSBOX_STEP_STDIO, j->command.devnull);
    return 0;
}

/* Remembers our descriptors as they are in the command's table; in ours they change. */
void remember_own(struct job *j)
{
    const int own[] = {j->b.root, j->b.base, j->b.scratch, j->b.masked, j->b.parent};
    enum { OTHERS = sizeof own / sizeof own[0] };
    _Static_assert(OTHERS + MAX_PROCS == sizeof j->command.own / sizeof j->command.own[0], "all have a place");
    for (unsigned i = 0; i < OTHERS + MAX_PROCS; i++)
        j->command.own[i] = i < OTHERS ? own[i] : j->parallel.procs[i - OTHERS];
}

/* Moves *fd away from numbers below `floor`, which are about to be overwritten. */
static int move_up(int *fd, int floor)
{
    if (*fd < 0 || *fd >= floor)
        return 0;
    int copy = sys_dupfd_cloexec(*fd, 3);
    if (copy < 0)
        return copy;
    *fd = copy;
    return 0;
}

static int put_at(int fd, int number)
{
    if (fd < 0)
        return 0;
    return fd == number ? sys_set_fd_flags(fd, 0) : sys_dup3(fd, number, 0);
}

static int source(const struct job *j, int fd)
{
    return fd == NSBOX_DEVNULL ? j->command.devnull : fd;
}

int stdio(const struct job *j)
{
    int in = source(j, j->req->stdin_fd), out = source(j, j->req->stdout_fd), err = source(j, j->req->stderr_fd);
    int ret = out == 0 ? move_up(&out, 1) : 0;
    if (ret >= 0)
        ret = move_up(&err, 2);
    if (ret >= 0)
        ret = put_at(in, 0);
    if (ret >= 0)
        ret = put_at(out, 1);
    if (ret >= 0)
        ret = put_at(err, 2);
    return ret;
}

static void close_each(const int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (fds[i] > 2) /* below 3 they have been replaced by the command's stdio, or exec closes them */
            sys_close(fds[i]);
}

/* Closes directories of the sandbox's own, which no later step needs. */
void close_own_places(struct job *j)
{
    close_each(j->command.own, sizeof j->command.own / sizeof j->command.own[0]);
    for (unsigned i = 0; i < sizeof j->command.own / sizeof j->command.own[0]; i++)
        j->command.own[i] = -1;
}

/* Closes the set-up's descriptors if the caller's stay open: exec would close them, but looks the program up first.
 * With PREEXEC those of the request stay open until exec: Python runs here, knows them by number, and closes what is
 * its own. A number that C had freed could be another file's by then. */
void close_own(struct job *j)
{
    const nsbox_request *r = j->req;
    const int made[] = {j->lifeline,   j->init.says[0],  j->init.says[1], j->setup_pipe[0],
                        j->init.pidfd, j->net.answer[0], j->b.proc,       j->command.devnull,
                        j->userns2.fd, j->net.settings,  j->net.answer[1]};
    const int borrowed[] = {r->user_fd, r->user2_fd, r->pid_fd,  r->hold_fd, r->report_fd, r->mnt_fd,
                            r->null_fd, r->image_fd, r->park_fd, r->go_fd,   r->relay_fd};
    close_each(made, sizeof made / sizeof made[0]);
    close_own_places(j);
    for (uint32_t i = 0, n = j->b.is_early ? plan_nops(r->plan) : 0; i < n; i++) /* as many as are still open */
        close_each(&j->b.early[i], 1);
    if (!(r->flags & NSBOX_PREEXEC)) {
        close_each(borrowed, sizeof borrowed / sizeof borrowed[0]);
        for (uint32_t i = 0; i < r->n_idmaps; i++)
            close_each(&r->idmaps[i].userns_fd, 1);
        return;
    }
    for (unsigned i = 0; i < sizeof borrowed / sizeof borrowed[0]; i++)
        if (borrowed[i] > 2)
            sys_set_fd_flags(borrowed[i], FD_CLOEXEC);
}

/* Closes what isn't 0..2 or in pass_fds, one gap between them at a time; those in pass_fds survive the exec. */
int descriptors(struct job *j)
{
    const nsbox_request *r = j->req;
    if (!(r->flags & (NSBOX_CLOSE_FDS | NSBOX_PREEXEC)))
        close_own(j);
    unsigned next = 3;
    for (uint32_t i = 0; i < r->n_pass_fds; i++) {
        int fd = r->pass_fds[i];
        int ret = sys_set_fd_flags(fd, 0);
        if (ret < 0)
            return ret;
        if (fd < 3 || !(r->flags & NSBOX_CLOSE_FDS))
            continue;
        if ((unsigned)fd > next && (ret = sys_close_range(next, (unsigned)fd - 1)) < 0)
            return ret;
        next = (unsigned)fd + 1;
    }
    return r->flags & NSBOX_CLOSE_FDS ? sys_close_range(next, ~0U) : 0;
}
