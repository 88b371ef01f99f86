/* stamps.c: records which files a kept tree's ops found and made when the tree is built, and compares them when it
 * is used.
 *
 * If all are still the same, a copy of the tree is what a new one would be.
 */
#include "ops.h"

static uint64_t device(const struct sys_statx *st)
{
    return (uint64_t)st->stx_dev_major << 32 | st->stx_dev_minor;
}

int is_mounting(const nsbox_op *op)
{
    static const uint8_t mounting[NSBOX_OP_END] = {
        [NSBOX_OP_BIND] = 1,   [NSBOX_OP_TMPFS] = 1, [NSBOX_OP_PROC] = 1, [NSBOX_OP_DEVPTS] = 1,
        [NSBOX_OP_MQUEUE] = 1, [NSBOX_OP_DATA] = 1,  [NSBOX_OP_MASK] = 1,
    };
    return mounting[op->code];
}

/* Records what is mounted; its name may lead elsewhere by now. */
int stamp_source(struct builder *b, const nsbox_op *op, int tree)
{
    struct sys_statx st;
    if (!b->stamps)
        return 0;
    nsbox_stamp *stamp = &b->stamps[op - plan_op(b->plan, 0)];
    TRY(b, NSBOX_STEP_SOURCE, sys_statx(tree, "", AT_EMPTY_PATH, STATX_INO, &st));
    stamp->source_dev = device(&st);
    stamp->source_ino = st.stx_ino;
    return 0;
}

/* Is it on the file system that the op names? If not, another directory has been put there. A file's device may differ
 * from its overlay's: stat(2) may show that of its layer. */
int check_device(struct builder *b, const nsbox_op *op, int tree)
{
    struct sys_statx st;
    if (!op->size)
        return 0;
    TRY(b, NSBOX_STEP_SOURCE, sys_statx(tree, "", AT_EMPTY_PATH, STATX_TYPE, &st));
    int is_dir = (st.stx_mode & SYS_S_IFMT) == SYS_S_IFDIR;
    TRY(b, NSBOX_STEP_SOURCE, is_dir && device(&st) != op->size ? -ESTALE : 0);
    return 0;
}

void stamp_made(struct builder *b, uint32_t i)
{
    if (b->stamps)
        b->stamps[i].made = is_mounting(plan_op(b->plan, i)) && !b->skipped;
}

/* Is it a mount's root? Then it can't be anything else: otherwise what was mounted there has gone. */
static int is_mount(const struct sys_statx *st)
{
    return (st->stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

/* Records what fd, which is closed, is open on. 1, 0 if it isn't a mount, or -errno. */
static int stamp_place(nsbox_stamp *stamp, int fd)
{
    struct sys_statx st;
    if (fd < 0)
        return fd;
    int ret = sys_statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);
    sys_close(fd);
    if (ret < 0)
        return ret;
    stamp->dev = device(&st);
    stamp->ino = st.stx_ino;
    return is_mount(&st);
}

/* Records what lies where the ops have mounted something, once all is done and "/" is the new root. If a destination is
 * reached through a symlink, a fresh mount along that way would redirect it; so symlinks are refused. */
int stamp_destinations(struct builder *b, int32_t *op)
{
    for (uint32_t i = 0, n = plan_nops(b->plan); i < n; i++) {
        nsbox_stamp *stamp = &b->stamps[i];
        if (!stamp->made)
            continue;
        *op = (int32_t)i;
        int ret = stamp_place(stamp, dest_find_plain(b, plan_str(b->plan, plan_op(b->plan, i)->dst)));
        if (ret < 0)
            return ret;
        TRY(b, NSBOX_STEP_STALE, ret ? 0 : -ESTALE);
    }
    *op = -1;
    return 0;
}

/* Records what is mounted already where a copy's ops will mount something. */
int stamp_places(struct builder *b, nsbox_stamp *stamps)
{
    for (uint32_t i = 0, n = plan_nops(b->plan); i < n; i++) {
        const nsbox_op *op = plan_op(b->plan, i);
        int ret = is_mounting(op) ? stamp_place(&stamps[i], dest_find(b, plan_str(b->plan, op->dst))) : 0;
        if (ret < 0 && ret != -ENOENT && ret != -ENOTDIR && ret != -ELOOP && ret != -EACCES)
            return ret;
        stamps[i].made = ret == 1;
    }
    return 0;
}

static int same_text(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

/* Records what a copy has mounted at path instead of the kept tree's mount. */
int stamp_renewed(const uint8_t *plan, nsbox_stamp *stamps, const char *path, int mount)
{
    struct sys_statx st;
    int ret = sys_statx(mount, "", AT_EMPTY_PATH, STATX_INO, &st);
    for (uint32_t i = 0, n = plan_nops(plan); i < n && ret >= 0; i++) {
        if (stamps[i].watched != NSBOX_WATCHED_RENEWED || !same_text(plan_str(plan, plan_op(plan, i)->dst), path))
            continue;
        stamps[i].dev = device(&st);
        stamps[i].ino = st.stx_ino;
    }
    return ret;
}

/* Is it what the kept tree has mounted at path? 0 or -errno. */
int stamp_check(const uint8_t *plan, const nsbox_stamp *stamps, const char *path, int fd)
{
    struct sys_statx st;
    int ret = sys_statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st), same = 0;
    for (uint32_t i = 0, n = plan_nops(plan); i < n && ret >= 0 && !same; i++)
        same = stamps[i].made && stamps[i].dev == device(&st) && stamps[i].ino == st.stx_ino &&
               same_text(plan_str(plan, plan_op(plan, i)->dst), path);
    return ret < 0 ? ret : same && is_mount(&st) ? 0 : -ESTALE;
}

static int look(const char *path, struct sys_statx *st)
{
    int ret = sys_statx(AT_FDCWD, path, AT_NO_AUTOMOUNT, STATX_INO, st);
    return ret == -ENOTDIR ? -ENOENT : ret;
}

/* Would the sources still be the same? 0 or -errno. */
int stamps_check_sources(const uint8_t *plan, const nsbox_stamp *stamps)
{
    for (uint32_t i = 0, n = plan_nops(plan); i < n; i++) {
        const nsbox_op *op = plan_op(plan, i);
        const nsbox_stamp *stamp = &stamps[i];
        struct sys_statx st;
        if (op->code != NSBOX_OP_BIND)
            continue;
        int ret = look(plan_str(plan, op->src), &st);
        int same = stamp->made ? ret >= 0 && device(&st) == stamp->source_dev && st.stx_ino == stamp->source_ino
                               : ret == -ENOENT;
        if (!same)
            return -ESTALE;
    }
    return 0;
}

/* Does everything still lie where it was put? A file that was to be hidden and was missing may exist now. */
int stamps_check_destinations(const uint8_t *plan, const nsbox_stamp *stamps)
{
    for (uint32_t i = 0, n = plan_nops(plan); i < n; i++) {
        const nsbox_op *op = plan_op(plan, i);
        const nsbox_stamp *stamp = &stamps[i];
        struct sys_statx st;
        if (!stamp->watched || (!stamp->made && op->code != NSBOX_OP_MASK))
            continue;
        int ret = look(plan_str(plan, op->dst), &st);
        int same = stamp->made ? ret >= 0 && is_mount(&st) && device(&st) == stamp->dev && st.stx_ino == stamp->ino
                               : ret == -ENOENT;
        if (!same)
            return -ESTALE;
    }
    return 0;
}
