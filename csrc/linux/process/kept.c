/* kept.c: a kept tree: a finished root, made once for many commands, each of which enters a copy.
 *
 * It is kept by descriptors of its namespaces, not by a process: there is nothing to kill or to look at. What its
 * ops found and made is kept as well (stamps.c), and compared before a command enters. So a copy is what a new
 * sandbox would be, or it isn't used.
 */
#include "process.h"

static int caller_root(uint64_t *id)
{
    struct sys_statx st;
    int ret = sys_statx(AT_FDCWD, "/", 0, STATX_MNT_ID, &st);
    *id = st.stx_mnt_id;
    return ret;
}

/* Done while we are still in the caller's namespaces: what can't be had, or asked, from inside. */
int kept_prepare(struct job *j)
{
    uint64_t root = 0;
    if (j->req->flags & NSBOX_TEMPLATE) {
        TRY(&j->b, NSBOX_STEP_ROOT, caller_root(&j->res->root_id));
        return 0;
    }
    TRY(&j->b, NSBOX_STEP_STALE, caller_root(&root));
    TRY(&j->b, NSBOX_STEP_STALE, root == j->req->root_id ? 0 : -ESTALE);
    if (!is_parked(j->req) || wants_devnull(j->req))
        TRY(&j->b, NSBOX_STEP_ROOT, j->b.proc = sys_openat(AT_FDCWD, "/proc", O_PATH | O_DIRECTORY, 0));
    if (!(j->req->flags & NSBOX_PARK)) /* a parked one is checked when its command comes */
        TRY(&j->b, NSBOX_STEP_STALE, stamps_check_sources(j->req->template_plan, j->req->stamps));
    return 0;
}

/* Does everything still lie where it was put? */
int kept_check(struct job *j)
{
    j->b.step = NSBOX_STEP_STALE;
    return stamps_check_destinations(j->req->template_plan, j->req->stamps);
}

static int open_own(struct job *j, const char *name)
{
    return sys_openat(j->b.proc, name, O_RDONLY, 0);
}

/* What is kept of a tree. The init's program is made here, by the user who will execute it. */
static int send_tree(struct job *j)
{
    int fds[] = {open_own(j, "self/ns/user"), open_own(j, "self/ns/mnt"), j->command.devnull, open_image(&j->b)};
    const unsigned n = sizeof fds / sizeof fds[0];
    for (unsigned i = 0; i < n; i++)
        if (fds[i] < 0)
            return fds[i];
    return send_fds(j->kept_pair[1], fds, n);
}

/* Receives in the caller what the set-up has sent: it has ended by now, so there is nothing to wait for. Here all
 * signals are blocked, and a fork of the caller's may keep the other end open. 0 or -errno. */
int kept_receive(struct job *j)
{
    nsbox_result *res = j->res;
    int fds[] = {-1, -1, -1, -1};
    unsigned n = j->req->flags & NSBOX_TEMPLATE ? sizeof fds / sizeof fds[0] : 1;
    int ret = receive_fds(j->kept_pair[0], fds, n, MSG_DONTWAIT);
    res->user_fd = fds[0];
    res->mnt_fd = fds[1];
    res->null_fd = fds[2];
    res->image_fd = fds[3];
    return ret;
}

/* Gives up what was received. */
void kept_drop(nsbox_result *res)
{
    int32_t *fds[] = {&res->user_fd, &res->mnt_fd, &res->null_fd, &res->image_fd};
    for (unsigned i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        sys_close(*fds[i]);
        *fds[i] = -1;
    }
}

int kept_finish(struct job *j, int32_t *op)
{
    int ret = stamp_destinations(&j->b, op);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_HOLD, send_tree(j));
    return 0;
}

/* Parks a copy of the tree: it stays as it was, except for what each command gets fresh. So only that has stamps of
 * its own, from when it was mounted: a copy of a mount has the same file system and the same root (copy_tree() of
 * fs/namespace.c). What isn't watched lies on our own file systems, and is never compared. */
int park(struct job *j, int32_t *op)
{
    int ret = net_await(j);
    if (ret >= 0)
        ret = net_outcome(j, op); /* a command would look at this, but there is none */
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_HOLD, send_fds(j->kept_pair[1], &j->userns2.fd, 1));
    return 0;
}
