/* op_overlay.c: overlayfs in the sandbox's user namespace (Linux 5.11).
 *
 * Layers are opened first and passed to overlayfs as /proc/self/fd/N. So each path is looked up only once, and no
 * name needs the escaping of ":" and "," that option strings require.
 */
#include "kernel/resolve.h"
#include "ops.h"

struct layers {
    int fd[NSBOX_MAX_LAYERS + 2];
    uint32_t n;
};

static void close_layers(struct layers *l)
{
    while (l->n)
        sys_close(l->fd[--l->n]);
}

static int open_layers(struct builder *b, const nsbox_op *op, struct layers *l)
{
    b->step = NSBOX_STEP_SOURCE;
    const char *path = plan_str(b->plan, op->src);
    for (uint32_t i = 0; i < op->count; i++) {
        int fd = op->flags & NSBOX_NOFOLLOW ? open_plainly(path) : sys_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY, 0);
        if (fd < 0)
            return fd;
        l->fd[l->n++] = fd;
        while (*path++)
            continue;
    }
    return 0;
}

/* Opens the upper and work directories of a throw-away overlay, in the scratch tmpfs. */
static int open_temporary(struct builder *b, struct layers *l)
{
    int ret = fs_scratch(b);
    if (ret < 0)
        return ret;
    b->step = NSBOX_STEP_FS;
    for (int i = 0; i < 2; i++) {
        char name[32];
        put_uint(put_str(name, i ? "work" : "upper"), b->n_data, 10);
        ret = sys_mkdirat(b->scratch, name, 0755);
        if (ret < 0)
            return ret;
        int fd = sys_openat(b->scratch, name, O_PATH | O_NOFOLLOW | O_DIRECTORY, 0);
        if (fd < 0)
            return fd;
        l->fd[l->n++] = fd;
    }
    b->n_data++;
    return 0;
}

static char *put_fd(char *at, int fd)
{
    return put_uint(put_str(at, "/proc/self/fd/"), (uint64_t)fd, 10);
}

static int make_overlay(struct builder *b, const nsbox_op *op, const struct layers *l)
{
    char lower[NSBOX_MAX_LAYERS * 32], upper[32] = "", work[32] = "";
    int read_only = (op->flags & NSBOX_OVL_RO) != 0;
    uint32_t n_lower = l->n - (read_only ? 0 : 2);
    char *at = lower;
    *at = 0;
    for (uint32_t i = n_lower; i > 0; i--) { /* overlayfs wants the topmost first */
        at = put_fd(at, l->fd[i - 1]);
        if (i > 1)
            at = put_str(at, ":");
    }
    if (!read_only) {
        put_fd(upper, l->fd[n_lower]);
        put_fd(work, l->fd[n_lower + 1]);
    }
    /* userxattr: trusted.* attributes need capabilities in the initial namespace. */
    const char *options[] = {"userxattr", 0, "lowerdir", lower, read_only ? 0 : "upperdir", upper, "workdir", work, 0};
    return fs_make(b, "overlay", options, MOUNT_ATTR_SAFE | (read_only ? MOUNT_ATTR_RDONLY : 0));
}

int op_overlay(struct builder *b, const nsbox_op *op)
{
    struct layers l;
    l.n = 0;
    int ret = open_layers(b, op, &l);
    if (ret >= 0 && (op->flags & NSBOX_OVL_TMP))
        ret = open_temporary(b, &l);
    int mount = ret < 0 ? ret : make_overlay(b, op, &l);
    close_layers(&l);
    if (mount < 0)
        return mount;
    /* Only a throw-away layer may have mount points made in it later; the others end up on the host. */
    ret = op->flags & NSBOX_OVL_TMP ? own_add(b, mount) : 0;
    if (ret >= 0)
        ret = stamp_source(b, op, mount);
    if (ret >= 0)
        ret = attach_at(b, mount, plan_str(b->plan, op->dst), DEST_DIR);
    sys_close(mount);
    return ret;
}

static int freeze(const struct builder *b, const nsbox_op *op)
{
    int fs = sys_fspick(AT_FDCWD, plan_str(b->plan, op->dst));
    if (fs < 0)
        return fs;
    int ret = sys_fsconfig(fs, FSCONFIG_SET_FLAG, op->flags & NSBOX_FREEZE ? "ro" : "rw", 0, 0);
    if (ret >= 0)
        ret = sys_fsconfig(fs, FSCONFIG_CMD_RECONFIGURE, 0, 0, 0);
    sys_close(fs); /* useless if that has failed */
    return ret;
}

/* Makes the overlay of the old root read-only, or writable again. This is the file system, and so every mount of it,
 * even in namespaces that only a descriptor keeps. EBUSY (sb_prepare_remount_readonly()): a process has a file open
 * for writing, or mapped, through any of them; or a process that has just ended is about to close it. */
int op_freeze(struct builder *b, const nsbox_op *op)
{
    static const int64_t pause[2] = {0, 1000000};
    b->step = NSBOX_STEP_ATTR;
    int ret = freeze(b, op);
    for (int i = 0; i < 200 && ret == -EBUSY; i++) {
        sys_ppoll(0, 0, pause);
        ret = freeze(b, op);
    }
    return ret;
}
