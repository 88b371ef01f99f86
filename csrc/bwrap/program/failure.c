/* failure.c: what is said when a step of the set-up fails, in bubblewrap's words, which its clients match; and what
 * nsbox can add to that. */
#include "program.h"

/* By enum nsbox_step, where bubblewrap has no words. */
static const char *const step_names[NSBOX_STEP_END] = {
    [NSBOX_STEP_PLAN] = "malformed plan",
    [NSBOX_STEP_CLONE] = "clone",
    [NSBOX_STEP_LIFELINE] = "tie the sandbox to this process",
    [NSBOX_STEP_UNSHARE] = "unshare namespaces",
    [NSBOX_STEP_UID_MAP] = "write uid_map",
    [NSBOX_STEP_GID_MAP] = "write gid_map",
    [NSBOX_STEP_SETGROUPS] = "write setgroups",
    [NSBOX_STEP_ROOT] = "make the root file system",
    [NSBOX_STEP_SOURCE] = "open source",
    [NSBOX_STEP_DEST] = "resolve destination",
    [NSBOX_STEP_CREATE] = "create destination",
    [NSBOX_STEP_HOST] = "would change the host",
    [NSBOX_STEP_FS] = "make file system",
    [NSBOX_STEP_ATTR] = "set mount attributes",
    [NSBOX_STEP_ATTACH] = "mount",
    [NSBOX_STEP_WRITE] = "write contents",
    [NSBOX_STEP_SET] = "set",
    [NSBOX_STEP_PIVOT] = "pivot_root",
    [NSBOX_STEP_SECOND_USERNS] = "unshare second user namespace",
    [NSBOX_STEP_INIT] = "start pid 1",
    [NSBOX_STEP_COMMAND] = "clone the command",
    [NSBOX_STEP_STDIO] = "set up stdin, stdout, stderr",
    [NSBOX_STEP_SESSION] = "setsid",
    [NSBOX_STEP_RLIMIT] = "setrlimit",
    [NSBOX_STEP_GROUPS] = "setgroups",
    [NSBOX_STEP_GID] = "setgid",
    [NSBOX_STEP_UID] = "setuid",
    [NSBOX_STEP_CAPS] = "drop capabilities",
    [NSBOX_STEP_NNP] = "set no_new_privs",
    [NSBOX_STEP_FDS] = "pass descriptors",
    [NSBOX_STEP_KILLED] = "the set-up was killed from outside",
    [NSBOX_STEP_LIMIT_USERNS] = "limit user namespaces",
    [NSBOX_STEP_HOLD] = "wait for the word to go on",
};

/* What an op is called when it fails as a whole; NULL: it has no words of its own. */
static const char *about(struct program *p, const struct step *s)
{
    const char *src = s->src ? (const char *)s->src : "";
    struct digits d;
    switch (s->code) {
    case NSBOX_OP_BIND:
        if (s->flags & NSBOX_FROM_FD)
            return JOIN(p, "Can't bind mount fd ", digits_of(&d, s->fd), " on ", s->dest);
        return s->flags & NSBOX_PROBE_TTY ? NULL : JOIN(p, "Can't bind mount ", src, " on ", s->dest);
    case NSBOX_OP_PROC:
        return JOIN(p, "Can't mount proc on ", s->dest);
    case NSBOX_OP_TMPFS:
        return JOIN(p, "Can't mount tmpfs on ", s->dest);
    case NSBOX_OP_MQUEUE:
        return JOIN(p, "Can't mount mqueue on ", s->dest);
    case NSBOX_OP_DEVPTS:
        return JOIN(p, "Can't mount devpts on ", s->dest);
    case NSBOX_OP_OVERLAY:
        return JOIN(p, "Can't make overlay mount on ", s->dest);
    case NSBOX_OP_REMOUNT_RO:
        return JOIN(p, "Can't remount readonly on ", s->dest);
    case NSBOX_OP_DIR:
        return JOIN(p, "Can't mkdir ", s->dest);
    case NSBOX_OP_FILE:
    case NSBOX_OP_DATA:
        return JOIN(p, "Can't create file ", s->dest);
    case NSBOX_OP_SYMLINK:
        return JOIN(p, "Can't make symlink at ", s->dest);
    case NSBOX_OP_CHMOD: {
        char octal[6], *at = octal + sizeof octal - 1;
        uint32_t mode = s->mode;
        *at = 0;
        for (; mode; mode >>= 3)
            *--at = (char)('0' + (mode & 7));
        *--at = '0';
        return JOIN(p, "Can't chmod ", at, " ", s->dest);
    }
    case NSBOX_OP_HOSTNAME:
        return JOIN(p, "Can't set hostname to ", src);
    case NSBOX_OP_LOOPBACK:
        return "loopback: can't bring it up";
    default:
        return NULL;
    }
}

static bool is_directory(const struct step *s)
{
    struct sys_statx st;
    int ret;
    if (s->code != NSBOX_OP_BIND)
        return s->code != NSBOX_OP_DATA && s->code != NSBOX_OP_FILE;
    ret = s->flags & NSBOX_FROM_FD ? sys_statx(s->fd, "", SYS_AT_EMPTY_PATH, STATX_TYPE, &st)
                                   : sys_statx(AT_FDCWD, (const char *)s->src, 0, STATX_TYPE, &st);
    return ret >= 0 && (st.stx_mode & SYS_S_IFMT) == SYS_S_IFDIR;
}

/* There is no place to put it or, with STEP_ATTACH, what is there is of the wrong kind. */
static const char *not_made(struct program *p, const struct step *s, uint32_t step, const char *why)
{
    bool is_path = s->code == NSBOX_OP_BIND && !(s->flags & NSBOX_FROM_FD), is_dir = is_directory(s);
    if (s->code == NSBOX_OP_SYMLINK)
        return JOIN(p, "Can't make symlink at ", s->dest, ": ", why);
    if (s->code == NSBOX_OP_FILE)
        return JOIN(p, "Can't create file ", s->dest, ": ", why);
    if (step == NSBOX_STEP_CREATE)
        return JOIN(p, is_dir ? "Can't mkdir " : "Can't create file at ", s->dest, ": ", why);
    if (is_path) /* the words of 0.12, whose tests we pass */
        return JOIN(p, "Can't bind mount ", (const char *)s->src, " on ", s->dest, ": the destination is not a ",
                    is_dir ? "directory" : "file");
    return JOIN(p, is_dir ? "Can't mkdir " : "Can't create file at ", s->dest, ": ",
                errno_text(is_dir ? ENOTDIR : EISDIR));
}

/* Is it an op that puts something somewhere? */
static bool is_placed(const struct step *s)
{
    static const uint32_t others = 1u << NSBOX_OP_REMOUNT_RO | 1u << NSBOX_OP_CHMOD | 1u << NSBOX_OP_HOSTNAME |
                                   1u << NSBOX_OP_LOOPBACK | 1u << NSBOX_OP_DEVPTS;
    return !(others >> s->code & 1);
}

static const char *of_op(struct program *p, const struct step *s, const nsbox_result *res, const char *why)
{
    uint32_t step = res->step;
    const char *there = res->detail;
    if (s->code == NSBOX_OP_SYMLINK && res->error == EEXIST)
        return JOIN(p, "Can't make symlink at ", s->dest,
                    *there ? ": existing destination is " : ": destination exists and is not a symlink", there);
    if (step == NSBOX_STEP_SOURCE && s->op && s->op->src && s->code == NSBOX_OP_BIND)
        return JOIN(p, "Can't find source path ", (const char *)s->src, ": ", why);
    if (is_placed(s)) {
        bool is_below_file = res->error == ENOTDIR && (step == NSBOX_STEP_DEST || s->code == NSBOX_OP_SYMLINK);
        if ((step == NSBOX_STEP_CREATE && *there) || is_below_file)
            return JOIN(p, "Can't mkdir parents for ", s->dest, ": ", why);
        if (step == NSBOX_STEP_CREATE || (step == NSBOX_STEP_ATTACH && (res->error == EINVAL || res->error == ENOTDIR)))
            return not_made(p, s, step, why);
    }
    const char *what = about(p, s);
    return what ? JOIN(p, what, ": ", why) : NULL;
}

static const char *of_step(struct program *p, const nsbox_result *res, const char *why)
{
    switch (res->step) {
    case NSBOX_STEP_UNSHARE:
        return JOIN(p, "Creating new namespace failed: ", why);
    case NSBOX_STEP_UID_MAP:
        return JOIN(p, "setting up uid map: ", why);
    case NSBOX_STEP_GID_MAP:
        return JOIN(p, "setting up gid map: ", why);
    default: {
        const char *name = res->step < NSBOX_STEP_END ? step_names[res->step] : NULL;
        return JOIN(p, name ? name : "set-up", ": ", why);
    }
    }
}

/* The steps whose words are about the command line as a whole. */
static const char *of_line(struct program *p, const nsbox_result *res, const char *why)
{
    const nsbox_bwrap_line *line = &p->line;
    bool is_pid = line->fd[NSBOX_BWRAP_PIDNS] >= 0 && line->fd[NSBOX_BWRAP_USERNS] < 0;
    switch (res->step) {
    case NSBOX_STEP_EXEC:
        return JOIN(p, "execvp ", line->command[0], ": ", why);
    case NSBOX_STEP_CHDIR:
        return line->text[NSBOX_BWRAP_CHDIR] ? JOIN(p, "Can't chdir to ", line->text[NSBOX_BWRAP_CHDIR], ": ", why)
                                             : NULL;
    case NSBOX_STEP_LIMIT_USERNS:
        return res->error == EEXIST ? "creation of new user namespaces was not disabled as requested" : NULL;
    case NSBOX_STEP_SECCOMP:
        return JOIN(p, "prctl(PR_SET_SECCOMP): ", why);
    case NSBOX_STEP_SECOND_USERNS:
        return line->fd[NSBOX_BWRAP_USERNS2] < 0 ? NULL : JOIN(p, "Setting userns2 failed: ", why);
    case NSBOX_STEP_JOIN:
        return JOIN(p, "Joining specified ", is_pid ? "pid" : "user", " namespace failed: ", why);
    default:
        return NULL;
    }
}

/* ---- why this machine may forbid a step, as far as it shows, and what would help */

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
    if (caller_is_filtered(p))
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

static const char *machine_hint(struct program *p, uint32_t step, int error)
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
    if (step == NSBOX_STEP_SECOND_USERNS && p->line.fd[NSBOX_BWRAP_USERNS2] >= 0)
        return ""; /* it is about that one, not about the machine */
    bool is_userns = step == NSBOX_STEP_UNSHARE || step == NSBOX_STEP_UID_MAP || step == NSBOX_STEP_GID_MAP ||
                     step == NSBOX_STEP_SETGROUPS || step == NSBOX_STEP_SECOND_USERNS ||
                     (step == NSBOX_STEP_ROOT && (error == EPERM || error == EACCES));
    bool is_refusal = error == EPERM || error == EACCES || error == ENOSPC || error == ENOSYS || error == EINVAL;
    return is_userns && is_refusal ? no_userns(p, step, error) : "";
}

void fail_spawn(struct program *p)
{
    const nsbox_result *res = p->request.result;
    const char *why = errno_text(res->error), *text = of_line(p, res, why), *hint = "";
    if (!text && res->op >= 0 && (uint64_t)res->op < p->steps.n)
        text = of_op(p, (const struct step *)p->steps.items + res->op, res, why);
    if (!text)
        text = of_step(p, res, why);
    if (res->step != NSBOX_STEP_EXEC && res->step != NSBOX_STEP_CHDIR)
        hint = machine_hint(p, res->step, res->error);
    if (!text)
        no_memory(p);
    else if (*hint)
        FAIL(p, text, " (", hint, ")");
    else
        FAIL(p, text);
}
