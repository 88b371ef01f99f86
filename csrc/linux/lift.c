/* lift.c: what lies below a file system that is made anew for each command goes along onto the new one. */
#include "ops.h"

/* Copies of the mounts that the op names. All are there, unless the template doesn't fit any more. */
int lift(struct builder *b, const nsbox_op *op)
{
    const char *path = plan_str(b->plan, op->src);
    for (uint32_t i = 0; i < op->count; i++) {
        TRY(b, NSBOX_STEP_SOURCE, b->n_lifted < NSBOX_MAX_LIFTED ? 0 : -E2BIG);
        TRY(b, NSBOX_STEP_STALE,
            b->lifted[b->n_lifted++] = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | AT_RECURSIVE));
        while (*path++)
            continue;
    }
    return 0;
}

int take_lifted(struct builder *b, const nsbox_op *op)
{
    b->step = NSBOX_STEP_SOURCE;
    if ((uint32_t)op->fd >= b->n_lifted)
        return -EINVAL;
    int tree = b->lifted[op->fd];
    b->lifted[op->fd] = -EINVAL;
    return tree;
}
