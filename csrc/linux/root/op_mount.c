/* op_mount.c: the ops that mount something. */
#include "ops.h"
#include "kernel/resolve.h"

static int same_file(int a, int b)
{
    struct sys_statx x, y;
    return sys_statx(a, "", AT_EMPTY_PATH, STATX_INO, &x) >= 0 && sys_statx(b, "", AT_EMPTY_PATH, STATX_INO, &y) >= 0 &&
           x.stx_ino == y.stx_ino && x.stx_dev_major == y.stx_dev_major && x.stx_dev_minor == y.stx_dev_minor;
}

/* Opens the caller's descriptor again. It belongs to the caller's mount namespace, from which nothing can be bound
 * here. So the file is looked up in ours, by the name that the kernel has for it, and accepted only if it is the same
 * file (CVE-2024-42472). */
static int reopen(struct builder *b, int fd)
{
    char link[32], path[NSBOX_PATH_MAX];
    put_uint(put_str(link, "self/fd/"), (uint64_t)fd, 10);
    long n = sys_readlinkat(b->proc, link, path, sizeof path - 1);
    if (n < 0)
        return (int)n;
    path[n] = 0;
    int at = open_plainly(path);
    if (at >= 0 && !same_file(at, fd)) {
        sys_close(at);
        return -ESTALE;
    }
    return at;
}

static int take_lifted(struct builder *b, const nsbox_op *op)
{
    b->step = NSBOX_STEP_SOURCE;
    if ((uint32_t)op->fd >= b->n_lifted)
        return -EINVAL;
    int tree = b->lifted[op->fd];
    b->lifted[op->fd] = -EINVAL;
    return tree;
}

/* The attributes of the bind's tree; one that was lifted has them already. */
static unsigned bind_attrs(const nsbox_op *op)
{
    unsigned no_devices = op->flags & NSBOX_DEVICES ? 0 : MOUNT_ATTR_NODEV;
    return MOUNT_ATTR_NOSUID | no_devices | (op->flags & NSBOX_RDONLY ? MOUNT_ATTR_RDONLY : 0);
}

/* Does the source still have the owner whose files are mapped? That was found out by the path's name. Since then, a
 * user who may write to the directory above may have put another user's file there. */
static int owner_stays(int at, const nsbox_mapping *to, int all)
{
    struct sys_statx st;
    int ret = sys_statx(at, "", AT_EMPTY_PATH, STATX_UID | STATX_GID, &st);
    return ret < 0 ? ret : st.stx_uid == to->uid && (!all || st.stx_gid == to->gid);
}

/* Opens a tree whose owner's files are the sandbox's own. A path that is bound onto itself on the way to another one
 * (OPTIONAL) isn't named by the policy: there, another user's file is left unmapped. */
static int open_mapped(struct builder *b, const nsbox_op *op, const nsbox_mapping *to)
{
    int is_named = !(op->flags & NSBOX_OPTIONAL), userns = to->userns_fd;
    const char *path = plan_str(b->plan, op->src);
    int at = op->flags & NSBOX_NOFOLLOW ? open_plainly(path) : sys_openat(AT_FDCWD, path, O_PATH, 0);
    if (at < 0)
        return at;
    int ret = owner_stays(at, to, is_named);
    if (ret == 0 && is_named)
        ret = -ESTALE;
    else if (ret == 0)
        userns = -1;
    if (ret >= 0)
        ret = fs_clone_mapped(b, at, "", AT_RECURSIVE | AT_EMPTY_PATH, bind_attrs(op), userns);
    sys_close(at);
    return ret;
}

/* Opens the op's source as a detached mount; to: the mapping of an idmapped mount, or NULL. */
int open_source(struct builder *b, const nsbox_op *op, const nsbox_mapping *to)
{
    unsigned attrs = bind_attrs(op);
    b->step = NSBOX_STEP_SOURCE;
    if (to)
        return open_mapped(b, op, to);
    /* Always recursive: a bind that left out the mounts below would uncover what they hide (and fails with EINVAL in
     * a user namespace). */
    const char *path = plan_str(b->plan, op->src);
    int at;
    if (op->flags & NSBOX_FROM_FD)
        at = reopen(b, op->fd);
    else if (op->flags & NSBOX_NOFOLLOW) /* an earlier command may have put a link there, to anything of the caller's */
        at = open_plainly(path);
    else
        return fs_clone(b, AT_FDCWD, path, AT_RECURSIVE, attrs);
    if (at < 0)
        return at;
    int tree = fs_clone(b, at, "", AT_RECURSIVE | AT_EMPTY_PATH, attrs);
    sys_close(at);
    return tree;
}

/* Is it a terminal? TCGETS succeeds only on one. The kernel's struct termios has 36 bytes. */
static int is_terminal(int fd)
{
    uint8_t termios[64];
    return fd >= 0 && sys_ioctl(fd, 0x5401 /* TCGETS */, termios) >= 0;
}

/* Opens the terminal's own device, or returns -ENOENT if there is none or its name leads elsewhere: /dev/console is
 * an extra. */
static int terminal_source(struct builder *b, unsigned attrs)
{
    b->step = NSBOX_STEP_SOURCE;
    int at = is_terminal(b->stdout_fd) ? reopen(b, b->stdout_fd) : -ENOENT;
    if (at < 0)
        return -ENOENT;
    int tree = fs_clone(b, at, "", AT_EMPTY_PATH, attrs);
    sys_close(at);
    return tree;
}

/* Is there nothing to bind, and is that all right? */
int may_be_missing(const nsbox_op *op, int error)
{
    if (error == -ENOENT)
        return (op->flags & (NSBOX_OPTIONAL | NSBOX_PROBE_TTY)) != 0;
    /* Below a file there is nothing to bind either; bwrap's -try forms don't count that as missing. */
    return error == -ENOTDIR && (op->flags & NSBOX_OPTIONAL) && (op->flags & NSBOX_NOFOLLOW);
}

/* Mounts the detached tree on the op's destination, which is made as a directory or a file like the tree's root. */
static int place(struct builder *b, const nsbox_op *op, int tree)
{
    unsigned mode;
    TRY(b, NSBOX_STEP_SOURCE, file_kind(tree, &mode, 0));
    enum dest_kind kind = (mode & SYS_S_IFMT) == SYS_S_IFDIR ? DEST_DIR : DEST_FILE;
    const char *path = plan_str(b->plan, op->dst);
    int at = renewed_place(b, op);
    if (at == -ENOENT)
        return attach_at(b, tree, path, kind);
    int ret = at < 0 ? at : attach(b, tree, at, "", path);
    if (at >= 0)
        sys_close(at);
    return ret;
}

/* Returns the op's source, which may have been opened before: see sources.c. */
static int source_of(struct builder *b, const nsbox_op *op)
{
    int early = b->is_early && !(op->flags & NSBOX_FROM_FD) ? b->early[op - plan_op(b->plan, 0)] : NOT_EARLY;
    if (early == NOT_EARLY)
        return op->count ? -EINVAL : open_source(b, op, 0);
    b->step = NSBOX_STEP_SOURCE;
    return early;
}

int op_bind(struct builder *b, const nsbox_op *op)
{
    int tree = op->flags & NSBOX_LIFTED      ? take_lifted(b, op)
               : op->flags & NSBOX_PROBE_TTY ? terminal_source(b, bind_attrs(op))
                                             : source_of(b, op);
    if (tree < 0) {
        b->skipped = b->step == NSBOX_STEP_SOURCE && may_be_missing(op, tree);
        return b->skipped ? 0 : tree;
    }
    int ret = check_device(b, op, tree);
    if (ret >= 0)
        ret = stamp_source(b, op, tree);
    if (ret >= 0)
        ret = place(b, op, tree);
    keep_renewed(b, op, tree);
    return ret;
}

/* Makes a file system for the op, and mounts it. */
static int mount_new(struct builder *b, const nsbox_op *op, int is_own)
{
    int at = renewed_place(b, op);
    int ret = at == -ENOENT ? 0 : at < 0 ? at : lift(b, op, at);
    if (ret < 0)
        return ret;
    int mount = b->new_fs(b, op);
    mount = is_own ? as_own(b, mount) : mount;
    if (mount < 0)
        return mount;
    ret = mount_renewed(b, op, at, mount);
    keep_renewed(b, op, mount);
    return ret;
}

int op_tmpfs(struct builder *b, const nsbox_op *op)
{
    return mount_new(b, op, 1);
}

int op_devpts(struct builder *b, const nsbox_op *op)
{
    return mount_new(b, op, 0);
}

int op_mqueue(struct builder *b, const nsbox_op *op)
{
    return mount_new(b, op, 0);
}

/* Makes kernel settings read-only that uid 0 of the machine could write by its plain file permissions, without any
 * capability (bubblewrap's list, and what drivers add). Another user can write some below "sys" as the owner of its
 * namespaces: those of ipc and mqueue, and from Linux 6.14 on of pid. */
static int cover_proc(struct builder *b, int proc, int all)
{
    static const char names[][16] = {"sys", "sysrq-trigger", "irq", "bus", "fs", "asound"};
    for (unsigned i = 0, n = all ? sizeof names / sizeof names[0] : 1; i < n; i++) {
        int tree = fs_clone(b, proc, names[i], AT_RECURSIVE, MOUNT_ATTR_RDONLY);
        b->step = NSBOX_STEP_ATTR;
        if (tree == -ENOENT)
            continue;
        if (tree < 0)
            return tree;
        int ret = sys_move_mount(tree, proc, names[i]); /* by name: the procfs is new, and only ours */
        sys_close(tree);
        if (ret < 0)
            return ret;
    }
    return 0;
}

/* Keeps an uncovered procfs in the mount namespace, where no process finds it: on a directory of a tmpfs that the
 * covered one is mounted on. The kernel lets a user namespace have a procfs only if it has one already of which
 * nothing is covered (mount_too_revealing() of fs/namespace.c). */
static int keep_visible(struct builder *b, const nsbox_op *op, int *at, int proc)
{
    int under = fs_tmpfs(b, 0755, 0);
    int ret = under < 0 ? under : sys_mkdirat(under, "proc", 0755);
    if (ret >= 0) {
        ret = mount_renewed(b, op, *at, under);
        *at = under;
    }
    if (ret >= 0)
        ret = sys_move_mount(proc, under, "proc");
    if (ret >= 0) /* clone it now that it is mounted: detached mounts can't be cloned before Linux 6.15 */
        ret = sys_open_tree(under, "proc", OPEN_TREE_CLONE);
    sys_close(proc);
    return ret;
}

int op_proc(struct builder *b, const nsbox_op *op)
{
    int at = renewed_place(b, op);
    int ret = at == -ENOENT ? 0 : at < 0 ? at : lift(b, op, at);
    if (ret < 0)
        return ret;
    b->step = NSBOX_STEP_FS;
    int proc = b->new_proc(b);
    if (proc >= 0 && op->flags & NSBOX_NESTS)
        proc = keep_visible(b, op, &at, proc);
    if (proc < 0)
        return proc;
    ret = mount_renewed(b, op, at, proc);
    if (ret >= 0 && op->flags & (NSBOX_COVER | NSBOX_COVER_SYS))
        ret = cover_proc(b, proc, (op->flags & NSBOX_COVER) != 0);
    keep_renewed(b, op, proc);
    return ret;
}

int op_remount_ro(struct builder *b, const nsbox_op *op)
{
    if (op->flags)
        return op_freeze(b, op);
    int fd = dest_find(b, plan_str(b->plan, op->dst));
    if (fd < 0)
        return fd;
    b->step = NSBOX_STEP_ATTR;
    int ret = mount_attrs(fd, MOUNT_ATTR_RDONLY | MOUNT_ATTR_SAFE, 0);
    /* EBUSY: a file is open for writing here. The init or the command has it in a copy of our table, and is about to
     * close it. */
    static const int64_t pause[2] = {0, 50000};
    for (int i = 0; i < 2000 && ret == -EBUSY; i++) {
        sys_ppoll(0, 0, pause);
        ret = mount_attrs(fd, MOUNT_ATTR_RDONLY | MOUNT_ATTR_SAFE, 0);
    }
    sys_close(fd);
    return ret;
}

/* Makes the one empty file without permissions that replaces all masked files. */
static int masked_file(struct builder *b)
{
    if (b->masked >= 0)
        return 0;
    int ret = fs_scratch(b);
    if (ret < 0)
        return ret;
    b->step = NSBOX_STEP_FS;
    b->masked = sys_openat(b->scratch, "masked", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0);
    return b->masked < 0 ? b->masked : 0;
}

/* Puts something that can't be read, written or entered in place of what is at dest. */
static int mask_over(struct builder *b, int dest, const char *path)
{
    unsigned mode;
    int ret = file_kind(dest, &mode, 0);
    if (ret < 0)
        return ret;
    int cover;
    if ((mode & SYS_S_IFMT) == SYS_S_IFDIR) {
        cover = fs_tmpfs(b, 0, 0);
    } else {
        ret = masked_file(b);
        if (ret < 0)
            return ret;
        b->step = NSBOX_STEP_FS;
        cover = sys_open_tree(b->masked, "", OPEN_TREE_CLONE | AT_EMPTY_PATH);
    }
    if (cover < 0)
        return cover;
    b->step = NSBOX_STEP_ATTR;
    ret = mount_attrs(cover, MOUNT_ATTR_RDONLY | MOUNT_ATTR_SAFE | MOUNT_ATTR_NOEXEC, 0);
    if (ret >= 0)
        ret = attach(b, cover, dest, "", path);
    sys_close(cover);
    return ret;
}

int op_mask(struct builder *b, const nsbox_op *op)
{
    const char *path = plan_str(b->plan, op->dst);
    int dest = op->flags & NSBOX_NOFOLLOW ? dest_find_plain(b, path) : dest_find(b, path);
    /* What we may not search belongs to another user, and no id of this sandbox may search it either. What a command
     * could have had a hand in, NOFOLLOW, is an error all the same. */
    int is_out_of_reach = dest == -EACCES && !(op->flags & NSBOX_NOFOLLOW);
    if ((dest == -ENOENT || dest == -ENOTDIR || is_out_of_reach) && (op->flags & NSBOX_OPTIONAL)) {
        b->skipped = 1;
        return 0;
    }
    if (dest < 0)
        return dest;
    int ret = mask_over(b, dest, path);
    sys_close(dest);
    return ret;
}
