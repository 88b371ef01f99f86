/* fs.c: new file systems and mounts by descriptor, and the few string helpers that they need. */
#include "ops.h"

char *put_str(char *at, const char *s)
{
    while (*s)
        *at++ = *s++;
    *at = 0;
    return at;
}

char *put_uint(char *at, uint64_t value, unsigned base)
{
    char digits[24];
    int n = 0;
    do {
        digits[n++] = (char)('0' + value % base);
        value /= base;
    } while (value);
    while (n)
        *at++ = digits[--n];
    *at = 0;
    return at;
}

int write_all(int fd, const uint8_t *p, size_t n)
{
    while (n) {
        long done = sys_write(fd, p, n);
        if (done == -EINTR)
            continue;
        if (done < 0)
            return (int)done;
        p += done;
        n -= (size_t)done;
    }
    return 0;
}

/* Returns a new instance of a file system, mounted nowhere yet, or -errno. options: key, value, key, value, ...,
 * NULL. */
int fs_make(struct builder *b, const char *type, const char *const *options, unsigned attrs)
{
    b->step = NSBOX_STEP_FS;
    int fs = sys_fsopen(type);
    if (fs < 0)
        return fs;
    int ret = sys_fsconfig(fs, FSCONFIG_SET_STRING, "source", type, 0); /* mount(8) shows this; else "none" */
    for (; *options && ret >= 0; options += 2) {
        unsigned command = options[1] ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
        ret = sys_fsconfig(fs, command, options[0], options[1], 0);
    }
    if (ret >= 0)
        ret = sys_fsconfig(fs, FSCONFIG_CMD_CREATE, 0, 0, 0);
    if (ret >= 0)
        ret = sys_fsmount(fs, attrs);
    sys_close(fs);
    return ret;
}

/* Notes that the mount's file system is our own. Returns the mount, or its error; the mount is closed if it can't be
 * noted. */
int as_own(struct builder *b, int mount)
{
    int ret = mount < 0 ? mount : own_add(b, mount);
    if (ret >= 0)
        return mount;
    if (mount >= 0)
        sys_close(mount);
    return ret;
}

static int make_tmpfs(struct builder *b, unsigned mode, uint64_t size)
{
    char mode_text[24], size_text[24], inodes_text[24];
    put_uint(mode_text, mode, 8);
    put_uint(size_text, size, 10);
    /* An empty file has no pages that count against size, but an inode of about a kilobyte. */
    put_uint(inodes_text, size / 2048 + 256, 10);
    const char *options[] = {"mode", mode_text, size ? "size" : 0, size_text, "nr_inodes", inodes_text, 0};
    return fs_make(b, "tmpfs", options, MOUNT_ATTR_SAFE);
}

/* Makes the file system that the op mounts. */
int fs_of(struct builder *b, const nsbox_op *op)
{
    const char *const none[] = {0};
    const char *const pts[] = {"ptmxmode", "0666", "mode", "620", 0};
    switch (op->code) {
    case NSBOX_OP_PROC:
        return fs_make(b, "proc", none, MOUNT_ATTR_SAFE | MOUNT_ATTR_NOEXEC);
    case NSBOX_OP_DEVPTS: /* each mount is an instance of its own (Linux 4.7) */
        return fs_make(b, "devpts", pts, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
    case NSBOX_OP_MQUEUE:
        return fs_make(b, "mqueue", none, MOUNT_ATTR_SAFE | MOUNT_ATTR_NOEXEC);
    case NSBOX_OP_TMPFS:
        return make_tmpfs(b, op->mode, op->size);
    default:
        return -EINVAL;
    }
}

/* Makes a tmpfs for the set-up itself, in the process that asks. */
int fs_tmpfs(struct builder *b, unsigned mode, uint64_t size)
{
    return as_own(b, make_tmpfs(b, mode, size));
}

/* Adds attributes to a mount (flags AT_RECURSIVE: and to all below it) and cuts it off from the
 * mount events of its origin: in a slave, what the host mounts later would appear without them. */
int mount_attrs(int fd, unsigned set, unsigned flags)
{
    struct sys_mount_attr attr = {.attr_set = set, .propagation = SYS_MS_PRIVATE};
    return sys_mount_setattr(fd, "", AT_EMPTY_PATH | flags, &attr);
}

/* Returns a detached copy of what is mounted at path, with attributes as by mount_attrs(). Where the kernel can, this
 * is one call (Linux 6.15). If that fails, it is repeated as two calls, which tell the causes apart. "Nothing is
 * there", which may be no error, is believed only if the one call has worked before. The step stays the caller's,
 * unless attributes were refused. */
int fs_clone(struct builder *b, int dir, const char *path, unsigned flags, unsigned attrs)
{
    struct sys_mount_attr attr = {.attr_set = attrs, .propagation = SYS_MS_PRIVATE};
    flags |= OPEN_TREE_CLONE;
    int tree = b->in_two_calls ? -ENOSYS : sys_open_tree_attr(dir, path, flags, &attr);
    if (tree >= 0)
        b->in_one_call = 1;
    if (tree >= 0 || (tree == -ENOENT && b->in_one_call))
        return tree;
    b->in_two_calls = tree != -ENOENT;
    tree = sys_open_tree(dir, path, flags);
    if (tree < 0)
        return tree;
    int ret = mount_attrs(tree, attrs, flags & AT_RECURSIVE);
    if (ret >= 0)
        return tree;
    b->step = NSBOX_STEP_ATTR;
    sys_close(tree);
    return ret;
}

/* The same, with the owners that the user namespace says (userns -1: with their own). It takes two calls:
 * open_tree_attr(2) would replace the mapping of a mount that has one, and its ids would differ from those asked
 * for. */
int fs_clone_mapped(struct builder *b, int dir, const char *path, unsigned flags, unsigned attrs, int userns)
{
    if (userns < 0)
        return fs_clone(b, dir, path, flags, attrs);
    int tree = sys_open_tree(dir, path, flags | OPEN_TREE_CLONE);
    if (tree < 0)
        return tree;
    struct sys_mount_attr attr = {
        .attr_set = attrs | MOUNT_ATTR_IDMAP, .propagation = SYS_MS_PRIVATE, .userns_fd = (unsigned)userns};
    int ret = sys_mount_setattr(tree, "", AT_EMPTY_PATH | (flags & AT_RECURSIVE), &attr);
    if (ret >= 0)
        return tree;
    b->step = NSBOX_STEP_IDMAP;
    sys_close(tree);
    return ret;
}

/* Attaches a detached mount to dest, or to what has that name in it. A mount on "/" becomes the root that later
 * paths resolve in, since a lookup through the old descriptor would go on below the new mount. */
int attach(struct builder *b, int mount, int dest, const char *name, const char *path)
{
    TRY(b, NSBOX_STEP_ATTACH, sys_move_mount(mount, dest, name));
    if (!*name)
        forget_parent(b);
    while (*path == '/')
        path++;
    if (*path)
        return 0;
    int root = sys_dupfd_cloexec(mount, 3);
    if (root < 0)
        return root;
    if (b->root != b->base)
        sys_close(b->root);
    b->root = root;
    return 0;
}

/* The same, for a path in the sandbox, which is made if it is missing. */
int attach_at(struct builder *b, int mount, const char *path, enum dest_kind kind)
{
    const char *name;
    int dest = dest_open(b, path, kind, 0755, &name);
    int ret = dest < 0 ? dest : attach(b, mount, dest, name, path);
    release_parent(b, dest);
    return ret;
}

int base_read_only(struct builder *b, int on)
{
    struct sys_mount_attr attr = {.attr_set = on ? MOUNT_ATTR_RDONLY : 0, .attr_clr = on ? 0 : MOUNT_ATTR_RDONLY};
    return sys_mount_setattr(b->base, "", AT_EMPTY_PATH, &attr);
}

/* Makes a tmpfs for files that the sandbox must see only through mounts of single files. It lies under the base
 * tmpfs, whose mount is unbindable, so that no recursive bind of the host's root carries it along. */
int fs_scratch(struct builder *b)
{
    if (b->scratch >= 0)
        return 0;
    int mount = fs_tmpfs(b, 0700, 0);
    if (mount < 0)
        return mount;
    int made = sys_mkdirat(b->base, SCRATCH_NAME, 0700);
    if (made == -EROFS) { /* an op has made the root read-only */
        TRY(b, NSBOX_STEP_FS, base_read_only(b, 0));
        made = sys_mkdirat(b->base, SCRATCH_NAME, 0700);
        TRY(b, NSBOX_STEP_FS, base_read_only(b, 1));
    }
    TRY(b, NSBOX_STEP_FS, made);
    b->scratch = mount;
    return sys_move_mount(mount, b->base, SCRATCH_NAME);
}

/* Opens again what a descriptor refers to. */
int fs_reopen(struct builder *b, int fd, int flags)
{
    char link[32];
    put_uint(put_str(link, "self/fd/"), (uint64_t)fd, 10);
    return sys_openat(b->proc, link, flags, 0);
}

/* Returns the host's /dev/null through a read-only mount. For a device that prevents neither reading nor writing,
 * but chmod(2): uid 0 needs no capability for that, and everybody uses the host's node. */
int fs_devnull(struct builder *b)
{
    int tree = fs_clone(b, AT_FDCWD, "/dev/null", 0, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID);
    if (tree < 0)
        return tree;
    int fd = fs_reopen(b, tree, O_RDWR);
    sys_close(tree);
    return fd;
}
