/* overlays.c: throw-away overlays of a kept tree's directories, for processes that attach them to their own mounts:
 * branches of an interpreter.
 *
 * A branch can't make them itself. What the policy hides in a directory is mounted there, and locked in the branch's
 * namespaces: overlayfs refuses such a directory (EINVAL), since it would show what lies beneath. The kept tree here
 * has no such mounts. It belongs to a user namespace of which no branch is a member, and what is hidden is hidden by
 * the overlay itself: a whiteout in its upper layer stands for a file that was removed (Documentation/filesystems/
 * overlayfs.rst). Nothing that a process does with the overlay brings the file back.
 *
 * Each overlay is made right for the branch that gets it, so it shows what the directory holds by then: overlayfs
 * doesn't notice when others change a directory below it after it has looked there.
 */
#include "calls.h"
#include "isolation/isolation.h"
#include "kernel/sys_mount.h"

#define SCRATCH "/scratch"

enum {
    NAME_MAX_ = 255,
    DIRECTORY = O_PATH | O_DIRECTORY | O_NOFOLLOW,
    WHITEOUT = 0020000 /* S_IFCHR, of device 0:0 */
};

struct maker {
    nsbox_overlays *o;
    struct builder b; /* its step alone */
    int scratch;
    int error;
};

/* Gives a directory in the scratch tmpfs the owner and the mode of the one that it stands for. An owner that this user
 * namespace doesn't know (EINVAL) is left out; then all checks of the directory below are made as the caller. */
static int copy_owner(int dir, const char *name, const struct sys_statx *from)
{
    int ret = sys_lchownat(dir, name, from->stx_uid, from->stx_gid);
    if (ret == -EINVAL || ret == -EPERM)
        ret = 0;
    int fd = ret < 0 ? ret : sys_openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd;
    ret = sys_fchmod(fd, from->stx_mode & 07777);
    sys_close(fd);
    return ret;
}

/* Steps into the directory of that name, in both layers; makes it in the upper one. 1, 0 if there is none, or -errno.
 */
static int step_down(int *lower, int *upper, const char *name)
{
    struct sys_statx st;
    int ret = sys_statx(*lower, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_MODE | STATX_UID | STATX_GID, &st);
    if (ret < 0 || (st.stx_mode & SYS_S_IFMT) != SYS_S_IFDIR)
        return ret == -ENOENT ? 0 : ret < 0 ? ret : (st.stx_mode & SYS_S_IFMT) == SYS_S_IFLNK ? -ELOOP : 0;
    ret = sys_mkdirat(*upper, name, 0700);
    if (ret >= 0)
        ret = copy_owner(*upper, name, &st);
    if (ret < 0 && ret != -EEXIST)
        return ret;
    int below = sys_openat(*lower, name, DIRECTORY, 0), above = sys_openat(*upper, name, DIRECTORY, 0);
    sys_close(*lower);
    sys_close(*upper);
    *lower = below;
    *upper = above;
    return below < 0 ? below : above < 0 ? above : 1;
}

/* Puts a whiteout at the name, even if nothing is there yet. */
static int white_out(int lower, int upper, const char *name)
{
    struct sys_statx st;
    int ret = sys_statx(lower, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &st);
    if (ret >= 0 && (st.stx_mode & SYS_S_IFMT) == SYS_S_IFLNK)
        return -ELOOP;
    if (ret < 0 && ret != -ENOENT)
        return ret;
    ret = sys_mknodat(upper, name, WHITEOUT);
    return ret == -EEXIST ? 0 : ret;
}

/* Hides what is at a path below both layers, whose descriptors are closed. */
static int hide(int lower, int upper, const char *path)
{
    char name[NAME_MAX_ + 1];
    int ret = lower < 0 ? lower : upper < 0 ? upper : 1;
    while (ret > 0) {
        unsigned n = 0;
        while (*path && *path != '/' && n < NAME_MAX_)
            name[n++] = *path++;
        name[n] = 0;
        if (*path && *path != '/')
            ret = -ENAMETOOLONG;
        else if (*path)
            ret = step_down(&lower, &upper, name);
        else
            ret = white_out(lower, upper, name);
        if (!*path)
            break;
        path++;
    }
    sys_close(lower);
    sys_close(upper);
    return ret < 0 ? ret : 0;
}

static int hide_all(struct maker *m, const nsbox_overlay *one, const char *upper)
{
    for (const char *const *path = one->hidden; *path; path++)
        TRY(&m->b, NSBOX_STEP_CREATE,
            hide(sys_openat(AT_FDCWD, one->lower, DIRECTORY, 0), sys_openat(m->scratch, upper, DIRECTORY, 0), *path));
    return 0;
}

/* Returns the overlay as a detached mount. */
static int make(struct maker *m, uint32_t i)
{
    const nsbox_overlay *one = &m->o->each[i];
    char upper[32], work[32], at_upper[48], at_work[48];
    put_uint(put_str(upper, "upper"), i, 10);
    put_uint(put_str(work, "work"), i, 10);
    put_str(put_str(at_upper, SCRATCH "/"), upper);
    put_str(put_str(at_work, SCRATCH "/"), work);
    struct sys_statx st;
    TRY(&m->b, NSBOX_STEP_SOURCE, sys_statx(AT_FDCWD, one->lower, 0, STATX_MODE | STATX_UID | STATX_GID, &st));
    TRY(&m->b, NSBOX_STEP_FS, sys_mkdirat(m->scratch, upper, 0700));
    TRY(&m->b, NSBOX_STEP_FS, sys_mkdirat(m->scratch, work, 0700));
    int ret = hide_all(m, one, upper);
    if (ret < 0)
        return ret;
    TRY(&m->b, NSBOX_STEP_FS, copy_owner(m->scratch, upper, &st));
    const char *options[] = {"userxattr", 0, "lowerdir", one->lower, "upperdir", at_upper, "workdir", at_work, 0};
    return fs_make(&m->b, "overlay", options, MOUNT_ATTR_SAFE);
}

static int make_scratch(struct maker *m)
{
    nsbox_op op;
    op.code = NSBOX_OP_TMPFS;
    op.mode = 0755;
    op.size = m->o->size;
    m->scratch = fs_of(&m->b, &op);
    if (m->scratch < 0)
        return m->scratch;
    TRY(&m->b, NSBOX_STEP_ATTACH, sys_move_mount(m->scratch, AT_FDCWD, SCRATCH));
    return 0;
}

static int make_all(struct maker *m)
{
    nsbox_overlays *o = m->o;
    TRY(&m->b, NSBOX_STEP_JOIN, sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0));
    TRY(&m->b, NSBOX_STEP_JOIN, sys_setns(o->user_fd, CLONE_NEWUSER));
    TRY(&m->b, NSBOX_STEP_JOIN, sys_setns(o->mnt_fd, CLONE_NEWNS));
    TRY(&m->b, NSBOX_STEP_UNSHARE, sys_unshare(CLONE_NEWNS)); /* the scratch tmpfs is in nobody's way */
    sys_umask(0);
    int ret = make_scratch(m);
    for (o->at = 0; o->at < o->n && ret >= 0; o->at++) {
        int mount = make(m, o->at);
        if (mount < 0)
            return mount;
        m->b.step = NSBOX_STEP_HOLD;
        ret = send_fds(o->report_fd, &mount, 1);
        sys_close(mount);
    }
    return ret;
}

/* The process that makes them. It has descriptors of its own, so nothing is left open if it is killed. */
static void maker(void *arg)
{
    struct maker *m = arg;
    int ret = make_all(m);
    m->o->step = m->b.step;
    m->error = ret < 0 ? ret : 0;
    sys_exit(0);
}

int nsbox_make_overlays(nsbox_overlays *o)
{
    sys_sigset all = ~(sys_sigset)0, mask;
    struct maker m;
    m.o = o;
    m.b.step = o->step = NSBOX_STEP_KILLED;
    m.error = -EINTR;
    o->at = o->n;
    sys_sigprocmask(SIG_SETMASK, &all, &mask);
    long pid = arch_clone(CLONE_VM | CLONE_VFORK, o->stack + o->stack_size, 0, 0, maker, &m);
    while (pid > 0 && sys_waitid(P_PID, (int)pid, 0, WEXITED | __WALL) == -EINTR)
        continue;
    sys_sigprocmask(SIG_SETMASK, &mask, 0);
    if (pid < 0)
        o->step = NSBOX_STEP_CLONE;
    return pid < 0 ? (int)pid : m.error;
}
