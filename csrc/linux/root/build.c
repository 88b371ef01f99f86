/* build.c: builds the sandbox's root, from an empty tmpfs to the pivot and the end of the old root; the table of ops
 * and their handlers. */
#include "ops.h"

typedef int (*handler)(struct builder *, const nsbox_op *);

static const handler handlers[NSBOX_OP_END] = {
    [NSBOX_OP_BIND] = op_bind,         [NSBOX_OP_TMPFS] = op_tmpfs,
    [NSBOX_OP_PROC] = op_proc,         [NSBOX_OP_DEVPTS] = op_devpts,
    [NSBOX_OP_MQUEUE] = op_mqueue,     [NSBOX_OP_DIR] = op_dir,
    [NSBOX_OP_FILE] = op_file,         [NSBOX_OP_DATA] = op_data,
    [NSBOX_OP_SYMLINK] = op_symlink,   [NSBOX_OP_REMOUNT_RO] = op_remount_ro,
    [NSBOX_OP_CHMOD] = op_chmod,       [NSBOX_OP_OVERLAY] = op_overlay,
    [NSBOX_OP_MASK] = op_mask,         [NSBOX_OP_HOSTNAME] = op_hostname,
    [NSBOX_OP_LOOPBACK] = op_loopback,
};

/* Mounts an empty tmpfs on "/". The mediator's own root stays what it was, beneath: paths go on resolving there, so
 * no staging directory of the host is needed. It is unbindable, so that a recursive bind of the host's "/" doesn't
 * contain it. */
static int start_root(struct builder *b)
{
    struct sys_mount_attr all_private = {.propagation = SYS_MS_PRIVATE};
    TRY(b, NSBOX_STEP_ROOT, sys_mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &all_private));
    int base = fs_tmpfs(b, 0755, 0);
    b->step = NSBOX_STEP_ROOT;
    if (base < 0)
        return base;
    TRY(b, NSBOX_STEP_ROOT, sys_move_mount(base, AT_FDCWD, "/"));
    struct sys_mount_attr unbindable = {.propagation = SYS_MS_UNBINDABLE};
    TRY(b, NSBOX_STEP_ROOT, sys_mount_setattr(base, "", AT_EMPTY_PATH, &unbindable));
    b->base = b->root = base;
    return 0;
}

/* Moves scratch onto the old tree's /proc, to be detached with it: an unmount of its own would wait for RCU. Then
 * removes its mount point, even if an op has made the base read-only. */
static int drop_scratch(struct builder *b)
{
    if (b->scratch < 0)
        return 0;
    TRY(b, NSBOX_STEP_ROOT, sys_move_mount(b->scratch, b->proc, ""));
    int ret = sys_unlinkat(b->base, SCRATCH_NAME, AT_REMOVEDIR);
    if (ret != -EROFS)
        return ret;
    TRY(b, NSBOX_STEP_ROOT, base_read_only(b, 0));
    TRY(b, NSBOX_STEP_ROOT, sys_unlinkat(b->base, SCRATCH_NAME, AT_REMOVEDIR));
    TRY(b, NSBOX_STEP_ROOT, base_read_only(b, 1));
    return 0;
}

/* Finds the id of the mount that path leads to. For "/.." it is the topmost one on the root: ".." at the root steps
 * onto what is mounted there. */
static int mount_id(int dir, const char *path, uint64_t *id)
{
    struct sys_statx st;
    int ret = sys_statx(dir, path, *path ? 0 : AT_EMPTY_PATH, STATX_MNT_ID, &st);
    *id = st.stx_mnt_id;
    return ret;
}

/* Makes the new root "/", by pivot_root(2): "." twice puts the old root on top of the new one. All tasks of the
 * namespace that had the old root (the init, the command) move along. Until drop_old_root(), a ".." that arrives at
 * "/" would step onto it. The id of the new root's mount is published only after the pivot: before, "/.." leads to
 * it from the old root, on which it lies. */
int enter_root(struct builder *b)
{
    uint64_t id;
    TRY(b, NSBOX_STEP_PIVOT, mount_id(b->root, "", &id));
    TRY(b, NSBOX_STEP_PIVOT, sys_fchdir(b->root));
    TRY(b, NSBOX_STEP_PIVOT, sys_pivot_root(".", "."));
    __atomic_store_n(&b->root_id, id, __ATOMIC_RELEASE);
    return 0;
}

int old_root_is_gone(struct builder *b)
{
    uint64_t top, root = __atomic_load_n(&b->root_id, __ATOMIC_ACQUIRE);
    int ret = root ? mount_id(AT_FDCWD, "/..", &top) : 0;
    return ret < 0 ? ret : root && top == root;
}

/* Detaches the old root, and with it every way to the host. Each umount2(".") detaches the topmost mount on our
 * root: if ops have mounted on "/", the mounts they covered lie over the old root. Only a look proves that it is
 * done: nothing may be left there. Each call detaches at once, and then waits for an RCU grace period
 * (namespace_unlock). */
int drop_old_root(struct builder *b)
{
    for (uint32_t i = 0; i <= plan_nops(b->plan) + 1; i++) {
        int gone = old_root_is_gone(b);
        TRY(b, NSBOX_STEP_PIVOT, gone);
        if (gone) {
            TRY(b, NSBOX_STEP_PIVOT, i ? sys_chdir("/") : -EXDEV);
            return 0;
        }
        TRY(b, NSBOX_STEP_PIVOT, sys_umount2(".", SYS_MNT_DETACH));
    }
    return -EXDEV;
}

/* Returns the mode of directories on the way to the op's destination. If others have no access to that, the way
 * isn't open to them either, as in bubblewrap. */
static unsigned parent_mode(const nsbox_op *op)
{
    int counts = op->code == NSBOX_OP_DIR || op->code == NSBOX_OP_FILE || op->code == NSBOX_OP_TMPFS ||
                 (op->code == NSBOX_OP_DATA && op->mode != 0600); /* that mode is the default */
    if (!counts)
        return 0755;
    return 0755U & ~(op->mode & 0070 ? 0U : 0050U) & ~(op->mode & 0007 ? 0U : 0005U);
}

static int carry_out(struct builder *b, int32_t *op)
{
    uint32_t n = plan_nops(b->plan);
    for (uint32_t i = 0; i < n; i++) {
        *op = (int32_t)i;
        const nsbox_op *o = plan_op(b->plan, i);
        b->parent_mode = parent_mode(o);
        b->skipped = 0;
        int ret = handlers[o->code](b, o);
        if (ret < 0)
            return ret;
        stamp_made(b, i);
        *op = -1;
        ret = b->after_op(b);
        if (ret < 0)
            return ret;
    }
    return 0;
}

int build_root(struct builder *b, int32_t *op)
{
    int ret = start_root(b);
    if (ret >= 0)
        ret = carry_out(b, op);
    if (ret < 0)
        return ret;
    TRY(b, NSBOX_STEP_ROOT, drop_scratch(b));
    /* A sandbox inside this one may bind the root again. */
    TRY(b, NSBOX_STEP_ROOT, mount_attrs(b->base, 0, 0));
    return 0;
}

int here(struct builder *b)
{
    if (b->root >= 0)
        return 0;
    TRY(b, NSBOX_STEP_ROOT, b->base = b->root = sys_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY, 0));
    TRY(b, NSBOX_STEP_ROOT, mount_id(b->root, "", &b->root_id));
    return 0;
}

int renew_root(struct builder *b, int32_t *op)
{
    int ret = here(b);
    if (ret >= 0)
        ret = carry_out(b, op);
    close_renewed(b);
    return ret;
}
