/* hint.c: why this machine may forbid a step, as far as it shows, and what would help. */
#include "program.h"

static bool setting_is(struct program *p, const char *path, char value)
{
    const char *text = file_text(p, path, NULL);
    return text && text[0] == value && (text[1] == '\n' || !text[1]);
}

/* In a chroot the root isn't a mount point. */
static bool is_chrooted(void)
{
    struct sys_statx st;
    return sys_statx(AT_FDCWD, "/", 0, STATX_INO, &st) >= 0 && (st.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) &&
           !(st.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

/* The AppArmor profile or SELinux context that confines this process; NULL without one. */
static const char *label(struct program *p)
{
    char *text = file_text(p, "/proc/self/attr/current", NULL);
    if (!text || !*text || text_after(text, "unconfined") || text_after(text, "kernel"))
        return NULL;
    for (char *ch = text; *ch; ch++)
        if (*ch == '\n')
            *ch = 0;
    return text;
}

static const char *no_userns(struct program *p, uint32_t step, int error)
{
    if (error == ENOSPC)
        return setting_is(p, "/proc/sys/user/max_user_namespaces", '0')
                   ? "user.max_user_namespaces is 0: sysctl user.max_user_namespaces=15000"
                   : "the limit of namespaces is reached: raise user.max_user_namespaces and similar limits";
    if (error == ENOSYS || error == EINVAL)
        return "this kernel has no user namespaces: it needs CONFIG_USER_NS";
    if (is_chrooted())
        return "in a chroot the kernel refuses user namespaces (user_namespaces(7)): pivot_root, or a container";
    if (p->caller.euid && setting_is(p, "/proc/sys/kernel/unprivileged_userns_clone", '0'))
        return "kernel.unprivileged_userns_clone is 0: sysctl kernel.unprivileged_userns_clone=1";
    if (p->caller.euid && setting_is(p, "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", '1'))
        return "AppArmor forbids unprivileged user namespaces (Ubuntu 23.10 and later): a profile with 'userns,' for "
               "this program, or sysctl kernel.apparmor_restrict_unprivileged_userns=0";
    const char *confined = label(p);
    if (confined)
        return JOIN(p, "this process is confined as '", confined,
                    "', which can forbid user namespaces or what they are for: a profile that allows userns, mount, "
                    "pivot_root and capabilities inside");
    if (step == NSBOX_STEP_UID_MAP && error == EACCES)
        return "this process isn't dumpable (prctl(2)), so it can't write the maps of its children";
    if (step == NSBOX_STEP_UID_MAP && p->caller.euid == 0)
        return "uid 0 can only be mapped with CAP_SETFCAP (Linux 5.12): in a sandbox, run as another uid";
    if (p->caller.is_filtered)
        return "this process runs behind a seccomp filter, which refuses user namespaces: in a container, "
               "--security-opt seccomp=unconfined or a filter that allows them";
    return "user namespaces are refused here; `nsbox doctor` may know more";
}

static const char *pidns_hint(uint32_t step, int error)
{
    if (step == NSBOX_STEP_JOIN && error == EPERM)
        return "a process needs power over a pid namespace to join it: join its --userns too";
    if (step == NSBOX_STEP_UNSHARE && error == EINVAL)
        return "the pid namespace belongs to a user namespace that the sandbox's isn't below: join that one too, by "
               "--userns";
    if ((step == NSBOX_STEP_INIT || step == NSBOX_STEP_COMMAND) && (error == ENOMEM || error == ESRCH))
        return "pid 1 of --pidns has ended";
    return NULL;
}

const char *machine_hint(struct program *p, uint32_t step, int error)
{
    const char *hint = p->line.fd[NSBOX_BWRAP_PIDNS] >= 0 ? pidns_hint(step, error) : NULL;
    if (hint)
        return hint;
    if (error == EMFILE)
        return "this process has too many open files: raise RLIMIT_NOFILE (ulimit -n)";
    if (error == EAGAIN && (step == NSBOX_STEP_CLONE || step == NSBOX_STEP_INIT || step == NSBOX_STEP_COMMAND))
        return "too many processes: RLIMIT_NPROC (ulimit -u) or the cgroup's pids.max is reached";
    if (step == NSBOX_STEP_COMMAND && error == EPERM)
        return "a seccomp filter refuses CLONE_PARENT: in a sandbox of nsbox, its policy needs nested=True";
    if (step == NSBOX_STEP_FS && error == EPERM)
        return "a new procfs needs a fully visible /proc: in a container, --security-opt systempaths=unconfined";
    bool is_userns = step == NSBOX_STEP_UNSHARE || step == NSBOX_STEP_UID_MAP || step == NSBOX_STEP_GID_MAP ||
                     step == NSBOX_STEP_SETGROUPS || step == NSBOX_STEP_SECOND_USERNS ||
                     (step == NSBOX_STEP_ROOT && (error == EPERM || error == EACCES));
    bool is_refusal = error == EPERM || error == EACCES || error == ENOSPC || error == ENOSYS || error == EINVAL;
    return is_userns && is_refusal ? no_userns(p, step, error) : "";
}
