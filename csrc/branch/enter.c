/* enter.c: the branch's own part: from a copy of the interpreter, with its privileges, to a confined process.
 *
 * It is pid 2 of its pid namespace. The mounts are the interpreter's, in a copy: the policy's are locked there, since
 * they come from an outer user namespace (mount_namespaces(7)). What a branch may write to is made fresh, as in a copy
 * of a kept tree.
 */
#include "branch.h"
#include "isolation/isolation.h"

enum { MOST_OWN = 512, UNSHARED = CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP };

struct entry {
    struct builder b;
    int lifted[NSBOX_MAX_LIFTED];
    uint64_t own[MOST_OWN];
    struct anchor anchors[MOST_OWN];
    char detail[sizeof((nsbox_result *)0)->detail]; /* of ops, which nothing reports */
    int settings;                                   /* /proc/sys/net of the branch, or -1 */
    int answer;                                     /* socket for the relay's, or -1 */
};

/* Another procfs of the branch's pid namespace: we are in that. The network settings of the first are kept open. */
static int new_proc(struct builder *b)
{
    struct entry *e = (struct entry *)(void *)((char *)b - offsetof(struct entry, b));
    const nsbox_op op = {.code = NSBOX_OP_PROC};
    int fd = fs_of(b, &op);
    if (fd >= 0 && e->settings < 0)
        e->settings = sys_openat(fd, "sys/net", O_PATH | O_DIRECTORY | O_NOFOLLOW, 0);
    return fd;
}

static int go_on(struct builder *b)
{
    (void)b;
    return 0;
}

static void clear(void *at, size_t n)
{
    any_word *words = at;
    for (size_t i = 0; i < n / sizeof *words; i++)
        words[i] = 0;
}
_Static_assert(sizeof(struct entry) % sizeof(uint64_t) == 0, "cleared by words");

static void set_up(struct entry *e, const nsbox_branch *branch)
{
    clear(e, sizeof *e);
    struct builder *b = &e->b;
    b->plan = branch->request->plan;
    b->root = b->base = b->scratch = b->masked = b->proc = b->parent = b->stdout_fd = e->settings = e->answer = -1;
    b->kept_plan = b->plan;
    b->kept_stamps = branch->request->stamps;
    b->lifted = e->lifted;
    b->anchors = e->anchors;
    for (uint32_t i = 0; i < branch->n_mounts && i < NSBOX_MOST_MOUNTS; i++)
        b->lifted[b->n_lifted++] = branch->mounts[i];
    b->own = e->own;
    b->max_own = MOST_OWN;
    b->new_proc = new_proc;
    b->new_fs = fs_of;
    b->after_op = go_on;
    b->detail = e->detail;
}

/* Closes the interpreter's descriptors. With these, a branch could end it, or enter its namespaces. */
static void close_interpreters(nsbox_branch *b)
{
    int32_t *all[] = {&b->image_fd, &b->lifeline_fd, &b->pid_fd,     &b->net_fd,
                      &b->relay_fd, &b->setup_fd,    &b->init_pidfd, &b->says_fd};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        if (*all[i] >= 0)
            sys_close(*all[i]);
        *all[i] = -1;
    }
}

static int has_op(const uint8_t *plan, uint32_t code)
{
    for (uint32_t i = 0, n = plan_nops(plan); i < n; i++)
        if (plan_op(plan, i)->code == code)
            return 1;
    return 0;
}

/* Puts the tmpfs that files are masked from where no process finds it: on /proc, under the fresh procfs. */
static int prepare_scratch(struct builder *b)
{
    if (!has_op(b->plan, NSBOX_OP_MASK))
        return 0;
    TRY(b, NSBOX_STEP_ROOT, here(b));
    int place = kept_place(b, "/proc");
    if (place < 0)
        return place;
    int ret = b->scratch = fs_tmpfs(b, 0700, 0);
    if (ret >= 0)
        ret = attach(b, b->scratch, place, "", "/proc");
    sys_close(place);
    if (ret >= 0)
        add_anchor(b, "/proc", b->scratch);
    return ret;
}

/* Shows the net namespace to the relay, which makes its side of it while we mount. */
static int show_net(struct entry *e, nsbox_branch *branch)
{
    int answer[2];
    if (branch->relay_fd < 0)
        return 0;
    branch->detail[0] = 0;
    TRY(&e->b, NSBOX_STEP_NET, sys_packet_pair(answer));
    e->answer = answer[0];
    TRY(&e->b, NSBOX_STEP_NET, relay_open(branch->relay_fd, branch->relay_id, 0, own_net(), answer[1]));
    return 0;
}

static int enter_namespaces_of(struct entry *e, nsbox_branch *branch)
{
    struct builder *b = &e->b;
    const nsbox_request *r = branch->request;
    TRY(b, NSBOX_STEP_UNSHARE, sys_unshare((r->namespaces & UNSHARED) | CLONE_NEWNS));
    struct sys_mount_attr all_private = {.propagation = SYS_MS_PRIVATE};
    TRY(b, NSBOX_STEP_ROOT, sys_mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &all_private));
    if (!(r->namespaces & CLONE_NEWNET))
        return 0;
    if (branch->net_fd >= 0)
        TRY(b, NSBOX_STEP_JOIN, sys_setns(branch->net_fd, CLONE_NEWNET));
    else
        TRY(b, NSBOX_STEP_UNSHARE, sys_unshare(CLONE_NEWNET));
    return show_net(e, branch);
}

/* Builds what each branch gets fresh. */
static int renew(struct entry *e, int32_t *op)
{
    struct builder *b = &e->b;
    TRY(b, NSBOX_STEP_ROOT, b->proc = sys_openat(AT_FDCWD, "/proc", O_PATH | O_DIRECTORY, 0));
    int ret = prepare_scratch(b);
    if (ret >= 0)
        ret = renew_root(b, op);
    if (ret < 0)
        return ret;
    TRY(b, NSBOX_STEP_PIVOT, sys_chdir("/")); /* ours may be in what is covered now */
    sys_close(b->masked);
    sys_close(b->root);
    return 0;
}

static int set_net(struct entry *e, nsbox_branch *branch)
{
    struct builder *b = &e->b;
    if (branch->request->namespaces & CLONE_NEWNET && has_op(b->plan, NSBOX_OP_LOOPBACK)) {
        open_ports(e->settings);
        TRY(b, NSBOX_STEP_SET, loopback_up());
    }
    sys_close(e->settings);
    if (e->answer >= 0)
        TRY(b, NSBOX_STEP_NET, relay_answer(e->answer, branch->lifeline_fd, branch->detail, sizeof branch->detail));
    sys_close(e->answer);
    return 0;
}

/* Enters a user namespace of its own, with the policy's ids. In a shared one, branches would share the limits that count
 * by user (RLIMIT_NPROC). "self" in the interpreter's procfs, which is covered by now, is this process. */
static int enter_users(const nsbox_request *r, int proc, uint32_t *step)
{
    *step = NSBOX_STEP_SECOND_USERNS;
    int ret = r->uid_map2 ? sys_unshare(CLONE_NEWUSER) : 0;
    return ret < 0 || !r->uid_map2 ? ret : write_maps(proc, "self/", r->uid_map2, r->gid_map2, MAPS_DENY, step);
}

/* Takes all privileges away, in the order of a command's. */
static int confine(const nsbox_branch *branch, int proc, uint32_t *step, int32_t *op)
{
    const nsbox_request *r = branch->request;
    int ret = enter_users(r, proc, step);
    sys_close(proc);
    if (ret >= 0)
        ret = limit_bounding_set(bounding_set(r), 0, step);
    if (ret >= 0)
        ret = limit_core(r, step);
    if (ret >= 0)
        ret = install_early_filters(r, step);
    uint32_t last = r->n_filters - r->n_last_filters;
    if (ret >= 0) {
        *step = NSBOX_STEP_SECCOMP;
        ret = install_filters(r, last - r->n_confined_filters, last);
    }
    if (ret >= 0)
        ret = set_ids(r, step);
    if (ret >= 0)
        ret = drop_capabilities(r, step);
    if (ret >= 0)
        ret = landlock_confine(r, step, op);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_RLIMIT;
    ret = set_limits(r);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_SECCOMP;
    return install_filters(r, last, r->n_filters);
}

static int enter(struct entry *e, nsbox_branch *branch, int32_t *op)
{
    struct builder *b = &e->b;
    int32_t bad;
    const nsbox_request *r = branch->request;
    TRY(b, NSBOX_STEP_PLAN, nsbox_plan_check(r->plan, r->plan_len, &bad));
    TRY(b, NSBOX_STEP_PLAN, r->stamps && plan_nops(r->plan) < MOST_OWN ? 0 : -EINVAL);
    TRY(b, NSBOX_STEP_SESSION, sys_setsid());
    int ret = enter_namespaces_of(e, branch);
    if (ret >= 0)
        ret = renew(e, op);
    if (ret >= 0)
        ret = set_net(e, branch);
    return ret < 0 ? ret : confine(branch, b->proc, &b->step, op);
}

int32_t nsbox_branch_look(nsbox_branch *branch)
{
    struct entry e;
    int32_t bad;
    set_up(&e, branch);
    const nsbox_request *r = branch->request;
    int ret = nsbox_plan_check(r->plan, r->plan_len, &bad);
    if (ret >= 0)
        ret = here(&e.b);
    if (ret >= 0)
        ret = stamp_places(&e.b, r->stamps);
    if (e.b.root >= 0)
        sys_close(e.b.root);
    branch->error = ret < 0 ? -ret : 0;
    branch->step = NSBOX_STEP_STALE;
    return ret;
}

int32_t nsbox_branch_enter(nsbox_branch *branch)
{
    struct entry e;
    int32_t op = -1;
    set_up(&e, branch);
    unsigned mask = (unsigned)sys_umask(0);
    int ret = enter(&e, branch, &op);
    sys_umask(mask);
    close_interpreters(branch);
    for (uint32_t i = 0; i < e.b.n_lifted; i++) /* none, unless something has failed */
        sys_close(e.lifted[i]);
    if (ret >= 0)
        return 0;
    branch->error = -ret;
    branch->step = e.b.step;
    branch->op = op;
    return ret;
}
