/* fds.c: which descriptors the command keeps, and which of the set-up's it must not have. */
#include "job.h"

static void close_each(const int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (fds[i] > 2) /* below 3 they have been replaced by the command's stdio, or exec closes them */
            sys_close(fds[i]);
}

/* Directories of the sandbox's own, which nothing needs that is still to come. */
void close_own_places(struct job *j)
{
    close_each(j->own, sizeof j->own / sizeof j->own[0]);
    for (unsigned i = 0; i < sizeof j->own / sizeof j->own[0]; i++)
        j->own[i] = -1;
}

/* The set-up's descriptors, when the caller's stay open: exec would close them, but looks the program up first. With
 * PREEXEC those of the request stay open until exec: Python runs here, knows them by number, and closes what is its
 * own. A number that C had freed could be another file's by then. */
void close_own(struct job *j)
{
    const nsbox_request *r = j->req;
    const int made[] = {j->lifeline, j->said[0], j->said[1],    j->setup_pipe[0], j->init_pidfd, j->answer[0],
                        j->b.proc,   j->devnull, j->userns2_fd, j->net_settings,  j->answer[1]};
    const int borrowed[] = {r->user_fd, r->user2_fd, r->pid_fd,  r->hold_fd, r->report_fd,
                            r->mnt_fd,  r->null_fd,  r->park_fd, r->go_fd,   r->relay_fd};
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

/* Closes what isn't 0..2 or in pass_fds, by the gaps between them; those in it survive exec. */
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
