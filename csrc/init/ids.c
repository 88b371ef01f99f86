/* ids.c: gives a command of a session other ids than pid 1's.
 *
 * Only where the sandbox has several ids does pid 1 keep capabilities (NSBOX_KEPT_CAPS), over the sandbox's user
 * namespace alone. It needs two to change ids, and two to find and end processes of other ids. It keeps them as
 * permitted ones, which no exec passes on. A command drops them before its exec, and until then isn't dumpable.
 */
#include "session.h"

#include <linux/capability.h>
#include <linux/prctl.h>

static int has_caps; /* pid 1, and a command up to its exec */

typedef struct __user_cap_data_struct cap_sets[2];

/* Reads our capability sets: all of them, if a filter of the policy's only pretends. */
static int get_caps(struct __user_cap_data_struct *sets)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    for (int i = 0; i < 2; i++)
        sets[i].effective = sets[i].permitted = sets[i].inheritable = ~0U;
    return sys_capget(&head, sets);
}

/* Keeps these and no others that we have, and lets an exec pass on none. Then looks whether that is so: a filter may
 * pretend here too. */
static int limit_caps(uint64_t most)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    cap_sets sets;
    int ret = get_caps(sets);
    for (int i = 0; i < 2; i++) {
        sets[i].permitted &= (uint32_t)(most >> 32 * i);
        sets[i].effective = sets[i].permitted;
        sets[i].inheritable = 0;
    }
    if (ret >= 0)
        ret = sys_prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0);
    if (ret >= 0)
        ret = sys_capset(&head, sets);
    if (ret >= 0)
        ret = get_caps(sets);
    for (int i = 0; i < 2 && ret >= 0; i++)
        if (sets[i].inheritable || sets[i].permitted & ~(uint32_t)(most >> 32 * i))
            ret = -EPERM;
    return ret;
}

/* Has a filter only pretended to change the ids? */
static int check_ids(uint32_t uid, uint32_t gid)
{
    const uint32_t same = (uint32_t)-1;
    uint32_t u[3] = {same, same, same}, g[3] = {same, same, same};
    int ret = sys_getresuid(&u[0], &u[1], &u[2]);
    if (ret >= 0)
        ret = sys_getresgid(&g[0], &g[1], &g[2]);
    if (ret < 0)
        return ret;
    int is_uid = uid == same || (u[0] == uid && u[1] == uid && u[2] == uid);
    int is_gid = gid == same || (g[0] == gid && g[1] == gid && g[2] == gid);
    return is_uid && is_gid ? 0 : -EPERM;
}

/* They came through our own exec as ambient ones. */
int ids_begin(void)
{
    has_caps = 1;
    return limit_caps(~0ULL);
}

/* What we make in the sandbox's own file systems then belongs to this user, and we may do there what he may. The real
 * and saved ids stay: by these the caller may signal us. */
int ids_become(uint32_t uid, uint32_t gid)
{
    const uint32_t same = (uint32_t)-1;
    int ret = sys_setgroups(0, 0);
    if (ret >= 0)
        ret = sys_setresgid(same, gid, same);
    if (ret >= 0)
        ret = sys_setresuid(same, uid, same);
    if (ret >= 0)
        ret = sys_prctl(PR_SET_DUMPABLE, 0, 0);
    return ret < 0 ? ret : limit_caps(~0ULL); /* the effective ones too, which are gone if we were uid 0 */
}

/* Real, effective and saved ids. KEEPCAPS: a change from uid 0 would drop the permitted set at once. As long as that
 * isn't a subset of another process's, that one can't trace us, whatever dumpable flag the kernel sets with the new
 * ids (ptrace(2); fs.suid_dumpable). */
static int set_ids(const nsbox_entry *head, uint32_t *step)
{
    int ret = sys_prctl(PR_SET_KEEPCAPS, 1, 0);
    if (ret >= 0 && head->flags & NSBOX_ENTRY_GROUPS) {
        *step = NSBOX_STEP_GROUPS;
        ret = sys_setgroups(head->n_groups, (const uint32_t *)(const void *)((const char *)head + head->groups));
    }
    if (ret >= 0) {
        *step = NSBOX_STEP_GID;
        ret = sys_setresgid(head->gid, head->gid, head->gid);
    }
    if (ret >= 0) {
        *step = NSBOX_STEP_UID;
        ret = sys_setresuid(head->uid, head->uid, head->uid);
    }
    if (ret >= 0)
        ret = check_ids(head->uid, head->gid);
    *step = ret < 0 ? *step : NSBOX_STEP_CAPS;
    return ret < 0 ? ret : sys_prctl(PR_SET_DUMPABLE, 0, 0);
}

/* Gives the command its ids, and takes away what pid 1 has for that. What is left over is what pid 1 has where it
 * keeps nothing (CAP_SETFCAP at most, for uid 0). */
int ids_take(const nsbox_entry *head, uint32_t *step)
{
    *step = NSBOX_STEP_CAPS;
    if (!has_caps)
        return 0;
    int ret = set_ids(head, step);
    return ret < 0 ? ret : limit_caps(head->uid == (uint32_t)-1 || !head->uid ? ~NSBOX_KEPT_CAPS : 0);
}
