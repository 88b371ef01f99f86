/* op_file.c: the ops that make directories, files and links; only ever in the sandbox's own file systems. */
#include "ops.h"

int op_dir(struct builder *b, const nsbox_op *op)
{
    const char *name;
    int fd = dest_open(b, plan_str(b->plan, op->dst), DEST_DIR, op->mode, &name);
    if (fd < 0)
        return fd;
    unsigned mode = SYS_S_IFDIR;
    int ret = *name ? 0 : file_kind(fd, &mode, 0);
    release_parent(b, fd);
    if (ret >= 0 && (mode & SYS_S_IFMT) != SYS_S_IFDIR)
        TRY(b, NSBOX_STEP_CREATE, -ENOTDIR);
    return ret;
}

/* Opens name in dir for writing: a new file, or an existing one of our own that isn't a mount. */
static int open_own_file(struct builder *b, int dir, const char *name, unsigned mode)
{
    TRY(b, NSBOX_STEP_CREATE, own_check(b, dir));
    int fd = sys_openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
    if (fd != -EEXIST)
        return fd;
    fd = sys_openat2(dir, name, O_WRONLY | O_NONBLOCK, 0, RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH);
    if (fd == -ENOSYS || fd == -EPERM) /* see resolve.c; own_check() notices what is mounted there */
        fd = sys_openat(dir, name, O_WRONLY | O_NONBLOCK | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd;
    int ret = own_check(b, fd);
    if (ret >= 0)
        ret = sys_ftruncate(fd, 0);
    if (ret >= 0)
        return fd;
    sys_close(fd);
    return ret;
}

int op_file(struct builder *b, const nsbox_op *op)
{
    const char *name;
    int dir = dest_parent(b, plan_str(b->plan, op->dst), &name);
    if (dir < 0)
        return dir;
    int fd = open_own_file(b, dir, name, op->mode);
    release_parent(b, dir);
    if (fd < 0)
        return fd;
    b->step = NSBOX_STEP_WRITE;
    int ret = write_all(fd, b->plan + op->src, op->count);
    sys_close(fd);
    return ret;
}

/* Returns a file with the op's contents, in the scratch tmpfs, as a detached mount. */
static int data_mount(struct builder *b, const nsbox_op *op)
{
    int ret = fs_scratch(b);
    if (ret < 0)
        return ret;
    char name[32];
    put_uint(put_str(name, "data"), b->n_data++, 10);
    b->step = NSBOX_STEP_WRITE;
    int fd = sys_openat(b->scratch, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, op->mode);
    if (fd < 0)
        return fd;
    ret = write_all(fd, b->plan + op->src, op->count);
    if (ret >= 0)
        b->step = NSBOX_STEP_SOURCE;
    unsigned attrs = MOUNT_ATTR_SAFE | (op->flags & NSBOX_RDONLY ? MOUNT_ATTR_RDONLY : 0);
    if (ret >= 0)
        ret = fs_clone(b, fd, "", AT_EMPTY_PATH, attrs);
    sys_close(fd);
    return ret;
}

int op_data(struct builder *b, const nsbox_op *op)
{
    int tree = data_mount(b, op);
    if (tree < 0)
        return tree;
    int ret = attach_at(b, tree, plan_str(b->plan, op->dst), DEST_FILE);
    sys_close(tree);
    return ret;
}

/* Does the very same link exist already? bubblewrap accepts that since 0.9. If it is another link, its text is
 * reported. */
static int same_link(struct builder *b, int dir, const char *name, const char *target)
{
    char there[NSBOX_PATH_MAX];
    long n = sys_readlinkat(dir, name, there, sizeof there - 1);
    if (n < 0)
        return 0;
    there[n] = 0;
    for (unsigned i = 0; i < sizeof((nsbox_result *)0)->detail - 1 && i <= n; i++)
        b->detail[i] = there[i];
    long i = 0;
    while (i < n && there[i] == target[i])
        i++;
    return i == n && target[i] == 0;
}

int op_symlink(struct builder *b, const nsbox_op *op)
{
    const char *name;
    int dir = dest_parent(b, plan_str(b->plan, op->dst), &name);
    if (dir < 0)
        return dir;
    const char *target = plan_str(b->plan, op->src);
    int ret = own_check(b, dir);
    if (ret >= 0) {
        b->step = NSBOX_STEP_CREATE;
        ret = sys_symlinkat(target, dir, name);
    }
    if (ret < 0 && same_link(b, dir, name, target))
        ret = 0;
    release_parent(b, dir);
    return ret;
}

int op_chmod(struct builder *b, const nsbox_op *op)
{
    const char *path = plan_str(b->plan, op->dst);
    int at = dest_find(b, path);
    if (at < 0)
        return at;
    int ret = own_check(b, at);
    if (ret >= 0) {
        /* An O_PATH descriptor has no fchmod, so go through its entry in /proc, which names this inode. */
        char link[32];
        put_uint(put_str(link, "self/fd/"), (uint64_t)at, 10);
        b->step = NSBOX_STEP_SET;
        ret = sys_openat(b->proc, link, O_RDONLY | O_NONBLOCK, 0);
        if (ret >= 0) {
            int fd = ret;
            ret = sys_fchmod(fd, op->mode);
            sys_close(fd);
        }
    }
    sys_close(at);
    return ret;
}
