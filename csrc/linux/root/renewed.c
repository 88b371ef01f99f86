/* renewed.c: what each copy of a kept tree gets fresh: where it is mounted, and the mounts that go along onto it.
 *
 * A fresh file system covers the kept tree's, which all copies share and no command may see. Its place may lie in a
 * directory that the host, or a command, renames just then. So the place is opened once, and is compared with the
 * stamp. Nothing that follows looks its path up again: what goes onto the file system resolves in that.
 */
#include "kernel/resolve.h"
#include "ops.h"

/* Gives back the descriptor if it is what the kept tree has mounted at path, else -ESTALE; place may be an error. */
static int checked(struct builder *b, const char *path, int place)
{
    b->step = NSBOX_STEP_STALE;
    int ret = place < 0 ? place : stamp_check(b->kept_plan, b->kept_stamps, path, place);
    if (ret >= 0)
        return place;
    if (place >= 0)
        sys_close(place);
    return ret == -ENOENT || ret == -ELOOP || ret == -ENOTDIR ? -ESTALE : ret;
}

/* Opens what the kept tree has mounted at path. A link may lead there, as long as it does. */
int kept_place(struct builder *b, const char *path)
{
    return checked(b, path, dest_find(b, path));
}

/* Opens the place of what a copy mounts. -ENOENT: it has none yet, or this is no copy. */
int renewed_place(struct builder *b, const nsbox_op *op)
{
    const char *path = plan_str(b->plan, op->dst), *below = path;
    if (!b->kept_stamps)
        return -ENOENT;
    return dest_root(b, &below) == b->root ? kept_place(b, path) : dest_find(b, path);
}

/* Copies the mounts that the op names, which lie below the file system at place; they go onto the new one. All exist,
 * unless the kept tree doesn't fit any more. */
int lift(struct builder *b, const nsbox_op *op, int place)
{
    const char *path = plan_str(b->plan, op->src), *dir = plan_str(b->plan, op->dst);
    for (uint32_t i = 0; i < op->count; i++) {
        TRY(b, NSBOX_STEP_SOURCE, b->n_lifted < NSBOX_MAX_LIFTED ? 0 : -E2BIG);
        int *tree = &b->lifted[b->n_lifted++];
        size_t below = length_above(path, dir);
        TRY(b, NSBOX_STEP_SOURCE, *tree = below ? 0 : -EINVAL);
        TRY(b, NSBOX_STEP_STALE, *tree = checked(b, path, open_inside(place, path + below, 1)));
        int at = *tree;
        *tree = sys_open_tree(at, "", OPEN_TREE_CLONE | AT_RECURSIVE | AT_EMPTY_PATH);
        sys_close(at);
        TRY(b, NSBOX_STEP_STALE, *tree);
        while (*path++)
            continue;
    }
    return 0;
}

/* Mounts a fresh file system, and writes its stamps if the copy is to be parked. Closes place, not mount. */
int mount_renewed(struct builder *b, const nsbox_op *op, int place, int mount)
{
    const char *path = plan_str(b->plan, op->dst);
    int ret = place < 0 ? attach_at(b, mount, path, DEST_DIR) : attach(b, mount, place, "", path);
    if (place >= 0)
        sys_close(place);
    if (ret < 0 || !b->park_stamps)
        return ret;
    TRY(b, NSBOX_STEP_STALE, stamp_renewed(b->kept_plan, b->park_stamps, path, mount));
    return 0;
}

/* From here on, paths at and below this one resolve in root, which close_renewed() closes. */
void add_anchor(struct builder *b, const char *path, int root)
{
    b->anchors[b->n_anchors++] = (struct anchor){path, root};
}

/* Keeps what the op has mounted for the ops that lie in it, or closes it. */
void keep_renewed(struct builder *b, const nsbox_op *op, int mount)
{
    const nsbox_op *end = plan_op(b->plan, 0) + plan_nops(b->plan);
    const char *path = plan_str(b->plan, op->dst);
    for (const nsbox_op *other = op + 1; b->kept_stamps && other < end; other++)
        if (other->dst && length_above(plan_str(b->plan, other->dst), path)) {
            add_anchor(b, path, mount);
            return;
        }
    sys_close(mount);
}

/* Closes what keep_renewed() has kept. */
void close_renewed(struct builder *b)
{
    while (b->n_anchors)
        sys_close(b->anchors[--b->n_anchors].root);
    forget_parent(b);
}
