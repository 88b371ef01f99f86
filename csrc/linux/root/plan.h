/* plan.h: reading a plan blob. Only plan.c and this file know where a byte of it lies. */
#ifndef NSBOX_PLAN_H
#define NSBOX_PLAN_H

#include "calls.h"
#include <stddef.h>

/* All accessors are for blobs that nsbox_plan_check() has accepted. */
static inline uint32_t plan_nops(const uint8_t *plan)
{
    return ((const nsbox_plan *)(const void *)plan)->nops;
}
static inline const nsbox_op *plan_op(const uint8_t *plan, uint32_t i)
{
    return (const nsbox_op *)(const void *)(plan + sizeof(nsbox_plan)) + i;
}
static inline const char *plan_str(const uint8_t *plan, uint32_t offset)
{
    return (const char *)(plan + offset);
}

/* Returns the length of dir if path is that or lies below it, else 0. */
static inline size_t length_above(const char *path, const char *dir)
{
    size_t n = 0;
    while (dir[n] && dir[n] == path[n])
        n++;
    return dir[n] == 0 && (path[n] == '/' || path[n] == 0) ? n : 0;
}

#endif
