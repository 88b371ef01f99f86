/* renewed.c: what each copy of a kept tree gets fresh: where it is mounted, and the mounts that go along onto it.
 *
 * A fresh file system covers the kept tree's, which all copies share and no command may see. Its place may lie in a
 * directory that the host, or a command, renames just then. So the place is opened once, and is compared with the
 * stamp. Nothing that follows looks its path up again.
 */
#include "ops.h"

/* Returns the length of dir if path lies below it, else 0. */
static size_t length_above(const char *path, const char *dir)
{
    size_t n = 0;
    while (dir[n] && dir[n] == path[n])
        n++;
    return dir[n] == 0 && path[n] == '/' ? n : 0;
}

/* Will the op's place be in a file system that this copy has just been given? */
static int is_on_fresh(const struct builder *b, const nsbox_op *op)
{
    const char *path = plan_str(b->plan, op->dst);
    size_t most = 0;
    int is_fresh = 0;
    for (const nsbox_op *other = plan_op(b->plan, 0); other < op; other++) {
        size_t n = is_mounting(other) ? length_above(path, plan_str(b->plan, other->dst)) : 0;
        if (n && n >= most) {
            most = n;
            is_fresh = other->code != NSBOX_OP_BIND;
        }
    }
    return is_fresh;
}

/* Opens the place of a fresh file system. -ENOENT: it has none that could be compared, so it is found, or made, by its
 * path. */
int renewed_place(struct builder *b, const nsbox_op *op)
{
    const char *path = plan_str(b->plan, op->dst);
    int is_known = b->kept_stamps && !is_on_fresh(b, op);
    if (!is_known && !op->count)
        return -ENOENT;
    int fd = is_known ? dest_find_plain(b, path) : dest_find(b, path);
    b->step = NSBOX_STEP_STALE;
    int ret = fd >= 0 && is_known ? stamp_check(b->kept_plan, b->kept_stamps, path, fd) : fd;
    if (ret >= 0)
        return fd;
    if (fd >= 0)
        sys_close(fd);
    return ret == -ENOENT ? -ESTALE : ret;
}

/* Copies the mounts that the op names, which lie below the file system at place; they go onto the new one. All exist,
 * unless the kept tree doesn't fit any more. */
int lift(struct builder *b, const nsbox_op *op, int place)
{
    const char *path = plan_str(b->plan, op->src), *dir = plan_str(b->plan, op->dst);
    for (uint32_t i = 0; i < op->count; i++) {
        TRY(b, NSBOX_STEP_SOURCE, b->n_lifted < NSBOX_MAX_LIFTED ? 0 : -E2BIG);
        struct lifted *one = &b->lifted[b->n_lifted++];
        size_t below = length_above(path, dir);
        one->onto = -1;
        one->below = (uint32_t)below;
        TRY(b, NSBOX_STEP_SOURCE, one->tree = below ? 0 : -EINVAL);
        TRY(b, NSBOX_STEP_STALE, one->tree = sys_open_tree(place, path + below + 1, OPEN_TREE_CLONE | AT_RECURSIVE));
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

/* Keeps a fresh file system for what the op has lifted, or closes it. In a branch, that goes onto an overlay which
 * covers the file system by then. */
void keep_renewed(struct builder *b, const nsbox_op *op, int mount)
{
    if (!op->count || !b->kept_stamps) {
        sys_close(mount);
        return;
    }
    for (uint32_t i = b->n_lifted - op->count; i < b->n_lifted; i++)
        b->lifted[i].onto = mount;
}

/* Closes what keep_renewed() has kept. Those that one op has lifted come one after the other. */
void close_renewed(struct builder *b)
{
    for (uint32_t i = 0; i < b->n_lifted; i++)
        if (b->lifted[i].onto >= 0 && (i == 0 || b->lifted[i].onto != b->lifted[i - 1].onto))
            sys_close(b->lifted[i].onto);
    forget_parent(b);
}
