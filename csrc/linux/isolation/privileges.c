/* privileges.c: what the command may not have or ask for: capabilities, ids, system calls, limits. command.c decides
 * when each is taken away. */
#include "isolation.h"

#define RLIMIT_CORE_NUMBER 4 /* <sys/resource.h>, which is a C library's */
#include <linux/filter.h>
#include <linux/seccomp.h>

/* Each new user namespace comes with a full bounding set, and an exec as uid 0 would refill the permitted set from
 * it (capabilities(7)). So all capabilities but those to keep are dropped from it before the ids change. */
int limit_bounding_set(uint64_t keep, int plain, uint32_t *step)
{
    *step = NSBOX_STEP_CAPS;
    for (unsigned cap = 0; cap < 64; cap++) {
        if (keep >> cap & 1)
            continue;
        int ret = sys_prctl(PR_CAPBSET_DROP, cap, 0);
        /* A process that may not change the set, outside of a user namespace of its own, gains nothing by it: under
         * no_new_privs an exec gives no capability that wasn't permitted before (cap_bprm_creds_from_file). */
        if (ret == -EPERM && plain)
            return 0;
        if (ret == -EINVAL && cap > CAP_AUDIT_READ)
            return 0; /* beyond the last one that this kernel knows */
        if (ret < 0)
            return ret;
    }
    return 0;
}

/* Sets real, saved and effective ids: the caller's may differ, and access(2) goes by the real ones. Ids that the
 * command has already are set as well; that changes nothing of the shared memory. */
int set_ids(const nsbox_request *r, uint32_t *step)
{
    int ret = 0;
    if (r->flags & NSBOX_SET_GROUPS) {
        *step = NSBOX_STEP_GROUPS;
        ret = sys_setgroups(r->n_groups, r->groups);
    }
    if (ret >= 0) {
        *step = NSBOX_STEP_GID;
        ret = sys_setresgid(r->gid, r->gid, r->gid);
    }
    if (ret >= 0) {
        *step = NSBOX_STEP_UID;
        ret = sys_setresuid(r->uid, r->uid, r->uid);
    }
    return ret;
}

/* The kernel runs filters from the newest to the oldest; the strictest verdict wins (seccomp(2)). */
int install_filters(const nsbox_request *r, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const nsbox_filter *f = &r->filters[i];
        if (f->len == 0 || f->len > BPF_MAXINSNS)
            return -EINVAL;
        struct sock_fprog program = {
            .len = (unsigned short)f->len,
            .filter = (struct sock_filter *)(uintptr_t)f->code,
        };
        /* Not seccomp(2): a filter that allows little, such as systemd's sets of calls, still allows prctl(2). */
        int ret = sys_prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (unsigned long)(uintptr_t)&program);
        if (ret < 0)
            return ret;
    }
    return 0;
}

static int set_limit(const nsbox_rlimit *wish)
{
    struct sys_rlimit limit = {wish->soft, wish->hard}, now;
    int ret = sys_prlimit(wish->resource, 0, &now);
    if (ret < 0)
        return ret;
    if (now.hard < limit.hard) /* the caller or preexec_fn has lowered it */
        limit.hard = now.hard;
    if (limit.hard < limit.soft)
        limit.soft = limit.hard;
    return sys_prlimit(wish->resource, &limit, 0);
}

int set_limits(const nsbox_request *r)
{
    int ret = 0;
    for (uint32_t i = 0; i < r->n_rlimits && ret >= 0; i++)
        ret = set_limit(&r->rlimits[i]);
    return ret;
}

/* Sets the core limit before the filters, since one of them may pretend to do it and do nothing. */
int limit_core(const nsbox_request *r, uint32_t *step)
{
    int ret = 0;
    *step = NSBOX_STEP_RLIMIT;
    for (uint32_t i = 0; i < r->n_rlimits && ret >= 0; i++)
        if (r->rlimits[i].resource == RLIMIT_CORE_NUMBER)
            ret = set_limit(&r->rlimits[i]);
    return ret;
}

/* Keeps this process from being dumped before its exec. With a limit of 0 a core_pattern that is a pipe would get
 * the dump; with 1 it doesn't (core(5)). */
void limit_own_core(void)
{
    struct sys_rlimit core = {0, 0};
    sys_prlimit(RLIMIT_CORE_NUMBER, 0, &core);
    core.soft = core.hard < 1 ? core.hard : 1;
    sys_prlimit(RLIMIT_CORE_NUMBER, &core, 0);
}

/* Installs the filters that the set-up itself can live with, while the mediator mounts: translating a filter for the
 * processor takes longer than everything else that the command does before its exec. A command without any filter
 * doesn't start. */
int install_early_filters(const nsbox_request *r, uint32_t *step)
{
    *step = NSBOX_STEP_NNP;
    int ret = sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_SECCOMP;
    if (r->n_filters == 0 || (uint64_t)r->n_confined_filters + r->n_last_filters > r->n_filters)
        return -EINVAL;
    return install_filters(r, 0, r->n_filters - r->n_last_filters - r->n_confined_filters);
}

static int set_caps(uint64_t has, uint64_t passes)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2] = {
        {(uint32_t)has, (uint32_t)has, (uint32_t)passes},
        {(uint32_t)(has >> 32), (uint32_t)(has >> 32), (uint32_t)(passes >> 32)},
    };
    return sys_capset(&head, sets);
}

static int raise_ambient(uint64_t caps)
{
    int ret = 0;
    for (unsigned cap = 0; cap < 64 && ret >= 0; cap++)
        if (caps & 1ULL << cap)
            ret = sys_prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap);
    return ret;
}

/* What pid 1 of a session keeps goes through its exec as ambient capabilities, which need no bounding set. That set is
 * inherited for ever, so it has none of them. */
static int keep_for_session(const nsbox_request *r, uint32_t *step)
{
    uint64_t has = bounding_set(r) | kept_caps(r), keeps = kept_caps(r);
    int ret = set_caps(has | 1ULL << CAP_SETPCAP, keeps);
    if (ret >= 0)
        ret = raise_ambient(keeps);
    if (ret >= 0)
        ret = limit_bounding_set(bounding_set(r), 0, step);
    return ret < 0 ? ret : set_caps(has, keeps);
}

/* Drops all capabilities except those that the command keeps. A user other than 0 keeps them through the exec as
 * ambient ones. */
int drop_capabilities(const nsbox_request *r, uint32_t *step)
{
    uint64_t has = r->caps ? r->caps->permitted : bounding_set(r), passes = r->caps ? r->caps->inheritable : 0;
    *step = NSBOX_STEP_CAPS;
    int ret = sys_prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0);
    if (ret >= 0 && r->keeps_caps)
        return keep_for_session(r, step);
    if (ret >= 0)
        ret = set_caps(has, passes);
    return ret < 0 || r->uid == 0 ? ret : raise_ambient(has & passes);
}
