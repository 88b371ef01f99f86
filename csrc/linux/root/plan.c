/* plan.c: is this blob a plan? Pure: no system calls, no state; fuzzed under ASan and UBSan.
 *
 * The blob comes from nsbox/_core/wire.py in the same process, so a malformed one is a bug, not an attack. But what
 * follows runs in the caller's memory before exec, where a wild offset would go unnoticed.
 */
#include "plan.h"
#include <asm/errno.h>

/* Returns the end of the string at offset (its NUL), or 0 if it leaves the blob or is longer than a path. */
static uint32_t string_end(const uint8_t *plan, uint32_t size, uint32_t start, uint32_t offset)
{
    if (offset < start || offset >= size)
        return 0;
    uint32_t limit = size - offset < NSBOX_PATH_MAX ? size - offset : (uint32_t)NSBOX_PATH_MAX;
    for (uint32_t i = 0; i < limit; i++)
        if (plan[offset + i] == 0)
            return offset + i;
    return 0;
}

static int is_text(const uint8_t *plan, uint32_t size, uint32_t start, uint32_t offset)
{
    uint32_t end = string_end(plan, size, start, offset);
    return end != 0 && end > offset;
}

static int is_path(const uint8_t *plan, uint32_t size, uint32_t start, uint32_t offset)
{
    return is_text(plan, size, start, offset) && plan[offset] == '/';
}

static int is_data(uint32_t size, uint32_t start, uint32_t offset, uint32_t count)
{
    return offset >= start && offset <= size && count <= size - offset;
}

static int are_paths(const uint8_t *plan, uint32_t size, uint32_t start, uint32_t at, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!is_path(plan, size, start, at))
            return 0;
        at = string_end(plan, size, start, at) + 1;
    }
    return 1;
}

static int are_layers(const uint8_t *plan, uint32_t size, uint32_t start, const nsbox_op *op)
{
    uint32_t extra = op->flags & (NSBOX_OVL_TMP | NSBOX_OVL_RO) ? 0 : 2;
    if ((op->flags & NSBOX_OVL_TMP) && (op->flags & NSBOX_OVL_RO))
        return 0;
    if (op->count < 1 + extra || op->count > NSBOX_MAX_LAYERS + extra)
        return 0;
    return are_paths(plan, size, start, op->src, op->count);
}

static int is_source(const uint8_t *plan, uint32_t size, uint32_t start, const nsbox_op *op)
{
    if (op->flags & NSBOX_LIFTED)
        return op->flags == NSBOX_LIFTED && op->fd >= 0 && op->fd < NSBOX_MAX_LIFTED;
    return op->flags & NSBOX_FROM_FD ? op->fd >= 0 : is_path(plan, size, start, op->src);
}

static uint32_t allowed_flags(uint32_t code)
{
    switch (code) {
    case NSBOX_OP_BIND:
        return NSBOX_RDONLY | NSBOX_DEVICES | NSBOX_OPTIONAL | NSBOX_FROM_FD | NSBOX_NOFOLLOW | NSBOX_PROBE_TTY |
               NSBOX_LIFTED;
    case NSBOX_OP_DATA:
        return NSBOX_RDONLY;
    case NSBOX_OP_PROC:
        return NSBOX_COVER | NSBOX_COVER_SYS | NSBOX_NESTS;
    case NSBOX_OP_OVERLAY:
        return NSBOX_OVL_TMP | NSBOX_OVL_RO | NSBOX_NOFOLLOW;
    case NSBOX_OP_MASK:
        return NSBOX_OPTIONAL | NSBOX_NOFOLLOW;
    case NSBOX_OP_REMOUNT_RO:
        return NSBOX_FREEZE | NSBOX_THAW;
    default:
        return 0;
    }
}

static int check_op(const uint8_t *plan, uint32_t size, uint32_t start, const nsbox_op *op)
{
    if (op->code == 0 || op->code >= NSBOX_OP_END || (op->flags & ~allowed_flags(op->code)) || op->mode > 07777)
        return 0;
    switch (op->code) {
    case NSBOX_OP_LOOPBACK:
        return 1;
    case NSBOX_OP_HOSTNAME:
        return is_text(plan, size, start, op->src) && string_end(plan, size, start, op->src) - op->src <= 64;
    case NSBOX_OP_BIND:
        if (!is_source(plan, size, start, op))
            return 0;
        break;
    case NSBOX_OP_TMPFS:
    case NSBOX_OP_PROC:
        if (op->count > NSBOX_MAX_LIFTED || !are_paths(plan, size, start, op->src, op->count))
            return 0;
        break;
    case NSBOX_OP_SYMLINK:
        if (!is_text(plan, size, start, op->src))
            return 0;
        break;
    case NSBOX_OP_FILE:
    case NSBOX_OP_DATA:
        if (!is_data(size, start, op->src, op->count))
            return 0;
        break;
    case NSBOX_OP_REMOUNT_RO:
        if (op->flags == (NSBOX_FREEZE | NSBOX_THAW))
            return 0;
        break;
    case NSBOX_OP_OVERLAY:
        if (!are_layers(plan, size, start, op))
            return 0;
        break;
    default:
        break;
    }
    return is_path(plan, size, start, op->dst);
}

int nsbox_plan_check(const uint8_t *plan, uint64_t len, int32_t *bad)
{
    *bad = -1;
    if (len < sizeof(nsbox_plan) || len > 0x7fffffff || (uintptr_t)plan % _Alignof(nsbox_op))
        return -EINVAL;
    const nsbox_plan *head = (const nsbox_plan *)(const void *)plan;
    if (head->magic != NSBOX_MAGIC || head->version != NSBOX_VERSION || head->size != len)
        return -EINVAL;
    if (head->nops > (len - sizeof(nsbox_plan)) / sizeof(nsbox_op))
        return -EINVAL;
    uint32_t start = (uint32_t)(sizeof(nsbox_plan) + head->nops * sizeof(nsbox_op));
    for (uint32_t i = 0; i < head->nops; i++) {
        *bad = (int32_t)i;
        if (!check_op(plan, (uint32_t)len, start, plan_op(plan, i)))
            return -EINVAL;
    }
    *bad = -1;
    return 0;
}
