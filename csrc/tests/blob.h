/* blob.h: plans for the tests, made by hand: ops, then one pool of strings that all of them share. */
#ifndef NSBOX_TESTS_BLOB_H
#define NSBOX_TESTS_BLOB_H

#include "linux/root/plan.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_OPS = 24 };

/* The pool of every blob here; P_x is where a string lies in it. */
static const char pool[] = "/a\0/b\0name\0/1\0/2\0/3\0/4\0/5\0/6\0/7\0/8\0/9\0/10\0/11\0/12\0/13\0\0data";
enum { P_A = 0, P_B = 3, P_NAME = 6, P_LAYERS = 11, P_EMPTY = 54, P_DATA = 55 };
enum { POOL = sizeof pool - 1 }; /* without the NUL of the literal: the last string, "data", has no end */

struct blob {
    uint8_t *bytes;
    uint64_t size;
};

static inline uint32_t pool_start(uint32_t nops)
{
    return (uint32_t)(sizeof(nsbox_plan) + nops * sizeof(nsbox_op));
}

static inline void *must_malloc(size_t n)
{
    void *p = malloc(n ? n : 1);
    if (!p)
        abort();
    return p;
}

static inline struct blob make(const nsbox_op *ops, uint32_t nops)
{
    uint32_t start = pool_start(nops);
    struct blob b = {must_malloc(start + POOL), start + POOL};
    nsbox_plan head = {.magic = NSBOX_MAGIC, .version = NSBOX_VERSION, .size = (uint32_t)b.size, .nops = nops};
    memcpy(b.bytes, &head, sizeof head);
    if (nops)
        memcpy(b.bytes + sizeof head, ops, nops * sizeof *ops);
    memcpy(b.bytes + start, pool, POOL);
    return b;
}

/* One op that is right, alone in its blob: offsets are of a blob with one op. */
static inline nsbox_op valid(uint32_t code)
{
    uint32_t start = pool_start(1);
    nsbox_op op = {.code = code, .mode = 0755, .fd = -1, .src = start, .dst = start + P_B, .count = 0, .size = 0};
    if (code == NSBOX_OP_SYMLINK || code == NSBOX_OP_HOSTNAME)
        op.src = start + P_NAME;
    if (code == NSBOX_OP_FILE || code == NSBOX_OP_DATA) {
        op.src = start + P_DATA;
        op.count = 4;
    }
    if (code == NSBOX_OP_OVERLAY) {
        op.src = start + P_LAYERS;
        op.count = 3;
    }
    return op;
}

#endif
