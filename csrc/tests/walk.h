/* walk.h: reads a plan as the handlers do, to the last byte. What nsbox_plan_check() has accepted must survive this
 * under AddressSanitizer. Every rule that a handler relies on is checked again here, written differently. */
#ifndef NSBOX_TESTS_WALK_H
#define NSBOX_TESTS_WALK_H

#include "linux/root/plan.h"

/* The bytes that were read go here, so that no compiler leaves the reading out. */
static volatile unsigned char walk_sink;

static inline int walk_bytes(const uint8_t *p, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        walk_sink = p[i];
    return 1;
}

/* A string that a system call gets: 1 to `most` bytes and a NUL; returns its length, or 0. */
static inline uint32_t walk_text(const char *s, uint32_t most)
{
    uint32_t n = 0;
    while (s[n]) {
        walk_sink = (unsigned char)s[n];
        if (++n > most)
            return 0;
    }
    return n;
}

static inline uint32_t walk_path(const uint8_t *plan, uint32_t offset)
{
    const char *path = plan_str(plan, offset);
    uint32_t n = walk_text(path, NSBOX_PATH_MAX - 1);
    return n && path[0] == '/' ? n : 0;
}

/* Paths one behind the other, as open_layers() and lift() step from string to string. */
static inline int walk_paths(const uint8_t *plan, const nsbox_op *op)
{
    uint32_t at = op->src;
    for (uint32_t i = 0; i < op->count; i++) {
        uint32_t n = walk_path(plan, at);
        if (!n)
            return 0;
        at += n + 1;
    }
    return 1;
}

/* The handler has room for MAX_LAYERS and two more. */
static inline int walk_layers(const uint8_t *plan, const nsbox_op *op)
{
    uint32_t own = op->flags & NSBOX_OVL_TMP ? 2 : 0;
    return op->count != 0 && op->count + own <= NSBOX_MAX_LAYERS + 2 && walk_paths(plan, op);
}

static inline int walk_source(const uint8_t *plan, const nsbox_op *op)
{
    switch (op->code) {
    case NSBOX_OP_TMPFS:
    case NSBOX_OP_PROC:
        return op->count <= NSBOX_MAX_LIFTED && walk_paths(plan, op);
    case NSBOX_OP_BIND:
        if (op->flags & NSBOX_LIFTED)
            return op->fd >= 0 && op->fd < NSBOX_MAX_LIFTED;
        return op->flags & NSBOX_FROM_FD ? op->fd >= 0 : walk_path(plan, op->src) != 0;
    case NSBOX_OP_SYMLINK:
        return walk_text(plan_str(plan, op->src), NSBOX_PATH_MAX - 1) != 0;
    case NSBOX_OP_HOSTNAME:
        return walk_text(plan_str(plan, op->src), 64) != 0;
    case NSBOX_OP_FILE:
    case NSBOX_OP_DATA:
        return walk_bytes(plan + op->src, op->count);
    case NSBOX_OP_OVERLAY:
        return walk_layers(plan, op);
    default:
        return 1;
    }
}

/* 1 when every op of an accepted plan can be carried out as far as memory goes; *bad is the first that can't. */
static inline int walk_plan(const uint8_t *plan, uint32_t *bad)
{
    for (uint32_t i = 0; i < plan_nops(plan); i++) {
        const nsbox_op *op = plan_op(plan, i);
        *bad = i;
        if (op->code == 0 || op->code >= NSBOX_OP_END || op->mode > 07777)
            return 0;
        if (!walk_source(plan, op))
            return 0;
        if (op->code != NSBOX_OP_HOSTNAME && op->code != NSBOX_OP_LOOPBACK && !walk_path(plan, op->dst))
            return 0;
    }
    return 1;
}

#endif
