/* sources.c: opens the sources of binds before the sandbox has ids of its own.
 *
 * Those ids can't search what only the caller may. And only the caller, before there is a user namespace, has the
 * power to map the files of one user to the sandbox's own (idmapped mounts, mount_setattr(2), Linux 5.12). So the
 * sources come along as detached mounts.
 */
#include "isolation.h"

/* Is the source a name, to be looked up in the caller's root? Without ids of the sandbox's own, only what is mapped is
 * opened here. A tree that was opened here has no locked mounts in it (mount_namespaces(7)). */
static int is_early(const nsbox_request *r, const nsbox_op *op)
{
    int is_name = op->code == NSBOX_OP_BIND && !(op->flags & (NSBOX_FROM_FD | NSBOX_LIFTED | NSBOX_PROBE_TTY));
    return is_name && (r->kernel_uid || op->count);
}

/* Opens the sources of a new root: for each, a descriptor or -errno. A copy of a kept tree has none of the caller's. */
int open_sources(struct job *j, int32_t *at)
{
    const nsbox_request *r = j->req;
    struct builder *b = &j->b;
    if (!(r->kernel_uid || r->n_idmaps) || is_warm(r) || r->mnt_fd >= 0)
        return 0;
    for (uint32_t i = 0, n = plan_nops(r->plan); i < n; i++) {
        const nsbox_op *op = plan_op(r->plan, i);
        b->early[i] = NOT_EARLY;
        if (!is_early(r, op))
            continue;
        *at = (int32_t)i;
        int tree = op->count > r->n_idmaps ? -EINVAL : open_source(b, op, op->count ? &r->idmaps[op->count - 1] : 0);
        if (tree < 0 && !may_be_missing(op, tree))
            return tree;
        b->early[i] = tree;
    }
    b->is_early = 1;
    *at = -1;
    return 0;
}
