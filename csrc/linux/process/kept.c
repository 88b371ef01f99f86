/* kept.c: a finished root, made once and kept for many commands: each enters a copy of it.
 *
 * It is kept by descriptors of its namespaces, not by a process: there is nothing to be killed or looked at. The ids and
 * names that its ops have found and made are kept as well, and compared by whoever enters: then a copy is what a new
 * sandbox would be, or there is none.
 */
#include "job/job.h"

static uint64_t device(const struct statx *st)
{
    return (uint64_t)st->stx_dev_major << 32 | st->stx_dev_minor;
}

static int is_mounting(const nsbox_op *op)
{
    static const uint8_t mounting[NSBOX_OP_END] = {
        [NSBOX_OP_BIND] = 1,   [NSBOX_OP_TMPFS] = 1, [NSBOX_OP_PROC] = 1, [NSBOX_OP_DEVPTS] = 1,
        [NSBOX_OP_MQUEUE] = 1, [NSBOX_OP_DATA] = 1,  [NSBOX_OP_MASK] = 1,
    };
    return mounting[op->code];
}

/* Of what is mounted; its name may lead elsewhere by now. */
int stamp_source(struct builder *b, const nsbox_op *op, int tree)
{
    struct statx st;
    if (!b->stamps)
        return 0;
    nsbox_stamp *stamp = &b->stamps[op - plan_op(b->plan, 0)];
    TRY(b, NSBOX_STEP_SOURCE, sys_statx(tree, "", AT_EMPTY_PATH, STATX_INO, &st));
    stamp->source_dev = device(&st);
    stamp->source_ino = st.stx_ino;
    return 0;
}

void stamp_made(struct builder *b, uint32_t i)
{
    if (b->stamps)
        b->stamps[i].made = is_mounting(plan_op(b->plan, i)) && !b->skipped;
}

/* A mount's root, that can't be anything else: what was mounted there has gone otherwise. */
static int is_mount(const struct statx *st)
{
    return (st->stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

/* What lies where the ops have mounted something, once all is done and "/" is the new root. A destination behind a symlink
 * would be another one, as soon as something lies on the way that each command has anew. */
static int record(struct job *j, const uint8_t *plan, nsbox_stamp *stamps, int32_t *op)
{
    for (uint32_t i = 0, n = plan_nops(plan); i < n; i++) {
        nsbox_stamp *stamp = &stamps[i];
        struct statx st;
        if (!stamp->made)
            continue;
        *op = (int32_t)i;
        int fd = dest_find_plain(&j->b, plan_str(plan, plan_op(plan, i)->dst));
        if (fd < 0)
            return fd;
        int ret = sys_statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);
        sys_close(fd);
        if (ret >= 0 && !is_mount(&st))
            ret = -ESTALE;
        TRY(&j->b, NSBOX_STEP_STALE, ret);
        stamp->dev = device(&st);
        stamp->ino = st.stx_ino;
    }
    *op = -1;
    return 0;
}

static int look(const char *path, struct statx *st)
{
    int ret = sys_statx(AT_FDCWD, path, AT_NO_AUTOMOUNT, STATX_INO, st);
    return ret == -ENOTDIR ? -ENOENT : ret;
}

/* Would the sources be the same ones now? */
static int check_sources(const nsbox_request *r)
{
    for (uint32_t i = 0, n = plan_nops(r->template_plan); i < n; i++) {
        const nsbox_op *op = plan_op(r->template_plan, i);
        const nsbox_stamp *stamp = &r->stamps[i];
        struct statx st;
        if (op->code != NSBOX_OP_BIND)
            continue;
        int ret = look(plan_str(r->template_plan, op->src), &st);
        int same = stamp->made ? ret >= 0 && device(&st) == stamp->source_dev && st.stx_ino == stamp->source_ino
                               : ret == -ENOENT;
        if (!same)
            return -ESTALE;
    }
    return 0;
}

/* Does everything still lie where it was put? A missing file that was to be hidden may have come into being. */
int template_check(struct job *j)
{
    const nsbox_request *r = j->req;
    j->b.step = NSBOX_STEP_STALE;
    for (uint32_t i = 0, n = plan_nops(r->template_plan); i < n; i++) {
        const nsbox_op *op = plan_op(r->template_plan, i);
        const nsbox_stamp *stamp = &r->stamps[i];
        struct statx st;
        if (!stamp->watched || (!stamp->made && op->code != NSBOX_OP_MASK))
            continue;
        int ret = look(plan_str(r->template_plan, op->dst), &st);
        int same = stamp->made ? ret >= 0 && is_mount(&st) && device(&st) == stamp->dev && st.stx_ino == stamp->ino
                               : ret == -ENOENT;
        if (!same)
            return -ESTALE;
    }
    return 0;
}

static int caller_root(uint64_t *id)
{
    struct statx st;
    int ret = sys_statx(AT_FDCWD, "/", 0, STATX_MNT_ID, &st);
    *id = st.stx_mnt_id;
    return ret;
}

/* While we are still where the caller is: what can't be had, or asked, from inside. */
int template_prepare(struct job *j)
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
    TRY(&j->b, NSBOX_STEP_STALE, check_sources(j->req));
    return 0;
}

static int open_own(struct job *j, const char *name)
{
    return sys_openat(j->b.proc, name, O_RDONLY, 0);
}

static int send_namespaces(struct job *j)
{
    const int fds[NSBOX_SENT] = {[NSBOX_SENT_USER] = open_own(j, "self/ns/user"),
                                 [NSBOX_SENT_MNT] = open_own(j, "self/ns/mnt"),
                                 [NSBOX_SENT_NULL] = j->devnull};
    for (int i = 0; i < NSBOX_SENT; i++)
        if (fds[i] < 0)
            return fds[i];
    return send_fds(j->req->report_fd, fds, NSBOX_SENT);
}

int template_finish(struct job *j, int32_t *op)
{
    int ret = record(j, j->b.plan, j->b.stamps, op);
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_HOLD, send_namespaces(j));
    return 0;
}

static void await_word(const uint32_t *word, uint32_t as_long_as)
{
    static const int64_t fifty_ms[2] = {0, 50000000};
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == as_long_as)
        sys_futex_wait(word, as_long_as, fifty_ms);
}

static void tell(struct job *j, enum userns2 how_far)
{
    __atomic_store_n(&j->userns2, how_far, __ATOMIC_RELEASE);
    sys_futex_wake(&j->userns2);
}

/* Is in the namespace while somebody else writes its maps. */
static void userns2_maker(void *arg)
{
    struct job *j = arg;
    sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    j->map2_error = sys_unshare(CLONE_NEWUSER);
    tell(j, USERNS2_ENTERED);
    while (__atomic_load_n(&j->userns2, __ATOMIC_ACQUIRE) == USERNS2_ENTERED && !caller_is_gone(j))
        await_word(&j->userns2, USERNS2_ENTERED);
    sys_exit(0);
}

static int map_userns2(struct job *j)
{
    while (__atomic_load_n(&j->userns2, __ATOMIC_ACQUIRE) == USERNS2_NONE) {
        if (!__atomic_load_n(&j->helper.tid, __ATOMIC_ACQUIRE))
            return -ESRCH; /* killed from outside */
        await_word(&j->userns2, USERNS2_NONE);
    }
    if (j->map2_error < 0)
        return j->map2_error;
    char path[48], *tail = put_str(put_uint(path, (uint64_t)j->helper.pid, 10), "/");
    int ret =
        write_maps(j->b.proc, path, j->req->uid_map2, j->req->gid_map2, how_to_map(j->req) & MAPS_PATIENT, &j->b.step);
    put_str(tail, "ns/user");
    return ret < 0 ? ret : open_own(j, path);
}

/* The last user namespace of one command. Each must have its own: in a shared one, who sees another by whatever procfs or
 * pidfd may trace it, and before its exec has the caller's memory before him. */
int make_userns2(struct job *j)
{
    TRY(&j->b, NSBOX_STEP_SECOND_USERNS, clone_sharer(&j->helper, 0, j->helper_stack, userns2_maker, j));
    int ret = map_userns2(j);
    tell(j, USERNS2_MAPPED);
    while (sys_waitid(P_PID, j->helper.pid, 0, WEXITED | __WALL) == -EINTR)
        continue;
    j->userns2_fd = ret;
    return ret < 0 ? ret : 0;
}

/* The copy is as it was, but for what is new in it. */
int park(struct job *j, int32_t *op)
{
    const nsbox_request *r = j->req;
    for (uint32_t i = 0, n = plan_nops(r->template_plan); i < n; i++) {
        r->park_stamps[i].made = r->stamps[i].made;
        r->park_stamps[i].watched = r->stamps[i].watched;
        r->park_stamps[i].source_dev = r->stamps[i].source_dev;
        r->park_stamps[i].source_ino = r->stamps[i].source_ino;
    }
    int ret = record(j, r->template_plan, r->park_stamps, op);
    if (ret >= 0)
        ret = init_await_net(j);
    if (ret >= 0 && makes_net(r) && j->init_net < 0) { /* it is what a command would look at, and there is none */
        *op = j->init_net_op;
        TRY(&j->b, j->init_net_step, j->init_net);
    }
    if (ret < 0)
        return ret;
    TRY(&j->b, NSBOX_STEP_HOLD, send_fds(r->report_fd, &j->userns2_fd, 1));
    return 0;
}
