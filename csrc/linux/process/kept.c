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

static int send_namespaces(struct job *j)
{
    const int fds[NSBOX_SENT] = {[NSBOX_SENT_USER] = open_own(j, "self/ns/user"),
                                 [NSBOX_SENT_MNT] = open_own(j, "self/ns/mnt"),
                                 [NSBOX_SENT_NULL] = j->command.devnull};
    for (int i = 0; i < NSBOX_SENT; i++)
        if (fds[i] < 0)
            return fds[i];
    return send_fds(j->req->report_fd, fds, NSBOX_SENT);
}

int kept_finish(struct job *j, int32_t *op)
{
    int ret = stamp_destinations(&j->b, j->b.plan, j->b.stamps, op);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_HOLD, send_namespaces(j));
    return 0;
}

/* Parks a copy of the tree: it stays as it was, except for what each command gets fresh. */
int park(struct job *j, int32_t *op)
{
    const nsbox_request *r = j->req;
    for (uint32_t i = 0, n = plan_nops(r->template_plan); i < n; i++) {
        r->park_stamps[i].made = r->stamps[i].made;
        r->park_stamps[i].watched = r->stamps[i].watched;
        r->park_stamps[i].source_dev = r->stamps[i].source_dev;
        r->park_stamps[i].source_ino = r->stamps[i].source_ino;
    }
    int ret = stamp_destinations(&j->b, r->template_plan, r->park_stamps, op);
    if (ret >= 0)
        ret = net_await(j);
    if (ret >= 0)
        ret = net_outcome(j, op); /* a command would look at this, but there is none */
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_HOLD, send_fds(r->report_fd, &j->userns2.fd, 1));
    return 0;
}
