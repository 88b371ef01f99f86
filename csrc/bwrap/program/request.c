/* request.c: namespaces, ids, capabilities and filters: what a command line means for the one who calls.
 *
 * uid 0 that asks for no user namespace gets one in which all ids stay the same. bubblewrap makes none then, and the
 * capabilities that it leaves hold for the whole machine. As with bubblewrap, background processes go on after the
 * command's end, and the command may make sandboxes itself. */
#include <linux/sched.h>

#include "program.h"

static bool has_user(const struct program *p)
{
    return (p->line.unshare | p->line.wanted) & NSBOX_BWRAP_USER;
}

static void namespaces(struct program *p)
{
    static const struct {
        uint32_t name;
        uint64_t flag;
    } optional[] = {{NSBOX_BWRAP_PID, CLONE_NEWPID},
                    {NSBOX_BWRAP_IPC, CLONE_NEWIPC},
                    {NSBOX_BWRAP_UTS, CLONE_NEWUTS},
                    {NSBOX_BWRAP_CGROUP, CLONE_NEWCGROUP},
                    {NSBOX_BWRAP_NET, CLONE_NEWNET}};
    uint32_t names = p->line.unshare | (p->line.wanted & NSBOX_BWRAP_CGROUP);
    uint64_t flags = CLONE_NEWNS | (p->line.fd[NSBOX_BWRAP_USERNS] < 0 ? CLONE_NEWUSER : 0);
    for (unsigned i = 0; i < sizeof optional / sizeof optional[0]; i++)
        flags |= names & optional[i].name ? optional[i].flag : 0;
    p->request.namespaces = flags;
}

/* The remaining capabilities: --cap-add and --cap-drop applied to none or, for uid 0, to all that it has.
 *
 * In another process's user namespace they can't be had without power over the mounts too. There uid 0 starts with
 * none, and adding one is refused. */
static bool capabilities(struct program *p)
{
    const nsbox_bwrap_line *line = &p->line;
    const struct caller *c = &p->caller;
    bool holds_maps = line->fd[NSBOX_BWRAP_USERNS_BLOCK] >= 0;
    bool joins = line->fd[NSBOX_BWRAP_USERNS] >= 0 || line->fd[NSBOX_BWRAP_USERNS2] >= 0;
    bool is_root = c->euid == 0 && !joins && !holds_maps, as_caller = is_root, has_some = is_root;
    uint64_t mask = is_root ? c->effective : 0;
    for (uint64_t i = 0; i < line->n_caps; i++) {
        const nsbox_bwrap_cap cap = line->caps[i];
        uint64_t bits = cap.number < 0 ? c->known : 1ULL << cap.number;
        if (cap.add && holds_maps)
            return FAIL(p, "--cap-add: can't be combined with --userns-block-fd here");
        if (cap.add && joins)
            return FAIL(p, "--cap-add: needs a user namespace below that of the mounts, so it can't be combined with ",
                        line->fd[NSBOX_BWRAP_USERNS] >= 0 ? "--userns" : "--userns2", " here");
        as_caller = false;
        has_some = cap.add || (has_some && cap.number >= 0);
        mask = cap.add ? mask | bits : mask & ~bits;
    }
    if (!has_some)
        return true;
    nsbox_caps *caps = program_take(p, sizeof *caps);
    if (!caps)
        return false;
    mask &= c->known;
    *caps = as_caller ? (nsbox_caps){c->effective, c->inheritable, c->bounding} : (nsbox_caps){mask, mask, mask};
    p->request.caps = caps;
    return true;
}

/* Returns a line of an id map. */
static const char *one_id(struct program *p, int64_t inside, int64_t outside)
{
    struct digits one, other;
    return JOIN(p, digits_of(&one, inside), " ", digits_of(&other, outside), " 1");
}

/* Returns the same ids as in a map of this process, each mapped to itself; NULL without memory. *has: is this id
 * among them? */
static const char *identity_map(struct program *p, const char *map, uint32_t id, bool *has)
{
    const char *text = "";
    if (!map)
        map = "0 0 4294967295\n";
    while (*map && text) {
        uint64_t field[3] = {0};
        for (int i = 0; i < 3; i++) {
            while (*map == ' ')
                map++;
            while (*map >= '0' && *map <= '9')
                field[i] = field[i] * 10 + (uint64_t)(*map++ - '0');
        }
        while (*map && *map++ != '\n')
            continue;
        struct digits from, count;
        *has = *has || (id >= field[0] && id - field[0] < field[2]);
        const char *inside = digits_of(&from, (int64_t)field[0]);
        text = JOIN(p, text, inside, " ", inside, " ", digits_of(&count, (int64_t)field[2]), "\n");
    }
    return text;
}

static bool map_all(struct program *p, bool is_locked)
{
    nsbox_request *r = &p->request;
    bool has_uid = false, has_gid = false;
    struct digits d;
    r->uid_map = identity_map(p, p->caller.uid_map, r->uid, &has_uid);
    r->gid_map = identity_map(p, p->caller.gid_map, r->gid, &has_gid);
    if (!r->uid_map || !r->gid_map)
        return false;
    if (!has_uid || !has_gid)
        return FAIL(p, has_uid ? "gid=" : "uid=", digits_of(&d, has_uid ? r->gid : r->uid),
                    " is not among the ids that can be mapped here");
    r->flags |= NSBOX_MAP_BY_HELPER;
    if (is_locked) {
        r->uid_map2 = r->uid_map;
        r->gid_map2 = r->gid_map;
        r->flags |= NSBOX_MAP2_BY_HELPER;
    }
    if (r->uid != p->caller.euid || r->gid != p->caller.egid)
        r->flags |= NSBOX_FORK_COMMAND | NSBOX_SET_GROUPS;
    return true;
}

static bool has_dev(const struct program *p)
{
    for (uint64_t i = 0; i < p->line.n_ops; i++)
        if (p->line.ops[i].what == NSBOX_BWRAP_DEV)
            return true;
    return false;
}

/* One id, the caller's. devpts needs a uid 0 in its user namespace to own the nodes; then the wanted ids come in a
 * second one. */
static bool map_one(struct program *p, bool is_locked)
{
    nsbox_request *r = &p->request;
    bool as_root = r->user2_fd < 0 && (r->uid || r->gid) && has_dev(p);
    r->flags |= NSBOX_DENY_SETGROUPS;
    r->uid_map = one_id(p, as_root ? 0 : r->uid, p->caller.euid);
    r->gid_map = one_id(p, as_root ? 0 : r->gid, p->caller.egid);
    if (as_root || is_locked) {
        r->uid_map2 = one_id(p, r->uid, as_root ? 0 : r->uid);
        r->gid_map2 = one_id(p, r->gid, as_root ? 0 : r->gid);
    }
    return r->uid_map && r->gid_map && (!(as_root || is_locked) || (r->uid_map2 && r->gid_map2));
}

static bool ids(struct program *p)
{
    const nsbox_bwrap_line *line = &p->line;
    nsbox_request *r = &p->request;
    const uint32_t unchanged = UINT32_MAX;
    bool joins = r->user_fd >= 0, holds_maps = line->fd[NSBOX_BWRAP_USERNS_BLOCK] >= 0;
    bool is_locked = r->caps || (line->flags & NSBOX_BWRAP_DISABLE_USERNS);
    uint64_t set_ids = 1ULL << 6 | 1ULL << 7; /* CAP_SETGID, CAP_SETUID */
    r->uid = line->id[NSBOX_BWRAP_UID] >= 0 ? (uint32_t)line->id[NSBOX_BWRAP_UID] : joins ? unchanged : p->caller.euid;
    r->gid = line->id[NSBOX_BWRAP_GID] >= 0 ? (uint32_t)line->id[NSBOX_BWRAP_GID] : joins ? unchanged : p->caller.egid;
    if (is_locked && (joins || r->user2_fd >= 0))
        return FAIL(p, "--disable-userns: can't be combined with ", joins ? "--userns" : "--userns2", " here");
    if (joins || holds_maps) {
        r->uid_map = r->gid_map = "";
        r->flags |= NSBOX_DENY_SETGROUPS | (joins ? NSBOX_FORK_COMMAND : 0);
        if (holds_maps)
            r->uid = r->gid = unchanged;
        return true;
    }
    if (p->caller.euid == 0 && !has_user(p) && (p->caller.effective & set_ids) == set_ids)
        return map_all(p, is_locked);
    return map_one(p, is_locked);
}

/* A filter of the command line may kill at the exec; that must leave no dump. To the kernel 1 means none at all; at 0
 * a core_pattern that is a pipe still gets one (core(5)). */
static bool no_dumps(struct program *p)
{
    struct sys_rlimit now;
    nsbox_rlimit *limit = program_take(p, sizeof *limit);
    if (!limit)
        return false;
    if (sys_prlimit(4 /* RLIMIT_CORE */, NULL, &now) < 0 || now.hard == 0)
        return true;
    *limit = (nsbox_rlimit){4, 0, 1, 1};
    p->request.rlimits = limit;
    p->request.n_rlimits = 1;
    return true;
}

/* The guard is installed while another process mounts. With a second user namespace and capabilities, it has to wait
 * until that is there. The command line's own filters come last. */
static bool filters(struct program *p)
{
    const nsbox_bwrap_line *line = &p->line;
    nsbox_request *r = &p->request;
    uint64_t n = line->n_filters;
    nsbox_filter *all = program_take(p, (n + 2) * sizeof *all);
    if (!all)
        return false;
    all[0] = (nsbox_filter){nsbox_bwrap_guard, nsbox_bwrap_guard_len / 8, 0};
    for (uint64_t i = 0; i < n; i++)
        all[i + 1] = (nsbox_filter){line->filters[i].code, (uint32_t)(line->filters[i].len / 8), 0};
    int fd = line->fd[NSBOX_BWRAP_SECCOMP];
    if (fd >= 0) {
        uint8_t *code;
        uint64_t len;
        int ret = fd_contents(p, fd, &code, &len);
        if (ret < 0)
            return FAIL(p, "Can't read seccomp data: ", errno_text(-ret));
        if (len % 8)
            return FAIL(p, "Invalid seccomp data, must be multiple of 8");
        all[++n] = (nsbox_filter){code, (uint32_t)(len / 8), 0};
    }
    for (uint64_t i = 1; i <= n; i++)
        if (all[i].len == 0 || all[i].len > 4096) /* BPF_MAXINSNS; the kernel would say the same */
            return FAIL(p, "prctl(PR_SET_SECCOMP): ", errno_text(EINVAL));
    if (n && !no_dumps(p))
        return false;
    if (r->n_rlimits)
        all[0] = (nsbox_filter){nsbox_bwrap_guard_of_core, nsbox_bwrap_guard_of_core_len / 8, 0};
    r->filters = all;
    r->n_filters = (uint32_t)n + 1;
    r->n_confined_filters = r->uid_map2 && r->caps;
    r->n_last_filters = (uint32_t)n;
    r->flags |= n ? NSBOX_FORK_COMMAND : 0;
    return true;
}

bool request_isolation(struct program *p)
{
    const nsbox_bwrap_line *line = &p->line;
    nsbox_request *r = &p->request;
    uint32_t asked = line->flags;
    r->user_fd = line->fd[NSBOX_BWRAP_USERNS];
    r->user2_fd = line->fd[NSBOX_BWRAP_USERNS2];
    r->pid_fd = line->fd[NSBOX_BWRAP_PIDNS];
    r->mnt_fd = r->null_fd = r->image_fd = r->park_fd = r->go_fd = r->hold_fd = r->report_fd = r->cgroup_fd =
        r->relay_fd = -1;
    r->stdin_fd = r->stdout_fd = r->stderr_fd = r->umask = r->pgid = -1;
    r->flags = NSBOX_CLOSE_FDS | NSBOX_SHELL | NSBOX_HOST_WRITES | NSBOX_STAY;
    r->flags |= asked & NSBOX_BWRAP_NEW_SESSION ? NSBOX_SETSID : 0;
    r->flags |= asked & NSBOX_BWRAP_DISABLE_USERNS ? NSBOX_LIMIT_USERNS : 0;
    r->flags |= asked & (NSBOX_BWRAP_DISABLE_USERNS | NSBOX_BWRAP_ASSERT_USERNS_DISABLED) ? NSBOX_NO_USERNS : 0;
    r->flags |= asked & NSBOX_BWRAP_AS_PID_1 ? NSBOX_AS_INIT : 0;
    r->flags |= line->fd[NSBOX_BWRAP_USERNS_BLOCK] >= 0 ? NSBOX_HOLD_MAPS : 0;
    bool has_init = (line->unshare & NSBOX_BWRAP_PID) && !(asked & NSBOX_BWRAP_AS_PID_1);
    if (!(asked & NSBOX_BWRAP_DIE_WITH_PARENT))
        r->flags |= NSBOX_OUTLIVE;
    else if (!has_init) /* nothing else could end it */
        r->flags |= NSBOX_DIE_WITH_THREAD;
    namespaces(p);
    return capabilities(p) && ids(p) && filters(p);
}
