/* namespaces.c: joins the namespaces that the caller named, and makes the others. */
#include "isolation.h"

/* The namespaces to make here. The net namespace isn't among them: it takes longer than all others together, so the
 * init makes it meanwhile. */
static unsigned long own_namespaces(const nsbox_request *r)
{
    return r->namespaces & ~(unsigned long)(CLONE_NEWNET | (is_below(r) ? CLONE_NEWPID : 0));
}

/* Joins the namespaces that the caller named. Our children will be in the pid namespace, beside processes that
 * aren't trusted, and with the caller's memory. So that memory mustn't be traceable (CVE-2016-9962). */
static int join_namespaces(struct job *j)
{
    const nsbox_request *r = j->req;
    if (r->pid_fd >= 0)
        TRY(&j->b, NSBOX_STEP_JOIN, sys_prctl(PR_GET_DUMPABLE, 0, 0) == 0 ? 0 : -EPERM);
    /* With power over both namespaces, it works from here. Other callers have that power only in the user namespace;
     * and from inside it, a pid namespace above its own can't be joined. */
    int joined = r->pid_fd >= 0 && sys_setns(r->pid_fd, CLONE_NEWPID) >= 0;
    if (r->user_fd >= 0)
        TRY(&j->b, is_warm(r) ? NSBOX_STEP_STALE : NSBOX_STEP_JOIN, sys_setns(r->user_fd, CLONE_NEWUSER));
    if (r->pid_fd >= 0 && !joined)
        TRY(&j->b, NSBOX_STEP_JOIN, sys_setns(r->pid_fd, CLONE_NEWPID));
    /* Through the init's pidfd: power over the user namespace is power over the init, which isn't dumpable. */
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
        return unshare_with_helper(j, own_namespaces(j->req));
    if (is_warm(r) && !is_parked(r)) { /* before there is a pid namespace, in which the command's number is fixed */
        ret = make_userns2(j);
        if (ret < 0) {
            j->b.step = NSBOX_STEP_STALE; /* a fresh start has other ways to write maps, and to say what is wrong */
            return ret;
        }
    }
    TRY(&j->b, NSBOX_STEP_UNSHARE, sys_unshare(is_parked(r) ? r->namespaces & CLONE_NEWCGROUP : own_namespaces(r)));
    if (r->user_fd >= 0 || r->flags & NSBOX_HOLD_MAPS)
        return 0;
    return write_maps(AT_FDCWD, "/proc/self/", r->uid_map, r->gid_map, how_to_map(r), &j->b.step);
}

/* Keeps the command from making a third user namespace. The second is the last that may be made below this one
 * (namespaces(7), /proc/sys/user): a process in it can set that namespace's limit, but not this one. */
int limit_userns(struct job *j)
{
    TRY(&j->b, NSBOX_STEP_LIMIT_USERNS, write_file(j->b.proc, "sys/user/max_user_namespaces", "1"));
    return 0;
}

/* Limits the sandbox's inotify instances. The kernel counts a user's instances in each user namespace and in those
 * above it, so a limit in ours holds for the whole sandbox. No process inside can lift it: its last user namespace
 * is another one, or procfs's settings are read-only there. */
int limit_inotify(struct job *j)
{
    const nsbox_request *r = j->req;
    if (!r->inotify_instances || r->user_fd >= 0) /* a kept tree's namespace has the limit already */
        return 0;
    char text[24];
    put_uint(text, r->inotify_instances, 10);
    TRY(&j->b, NSBOX_STEP_INOTIFY, write_file(j->b.proc, "sys/user/max_inotify_instances", text));
    return 0;
}
