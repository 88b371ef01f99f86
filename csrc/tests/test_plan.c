/* test_plan.c: what nsbox_plan_check() accepts as a plan and what it doesn't, and the accessors of plan.h. Each blob
 * lies in a piece of the heap of exactly its size, so that AddressSanitizer notices a byte read too far.
 */
#include "blob.h"
#include "check.h"
#include "walk.h"
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The core's verdict on these bytes, from a copy of exactly their size. *bad starts as something it never is. */
static int verdict(const uint8_t *bytes, uint64_t size, int32_t *bad)
{
    uint8_t *copy = must_malloc(size);
    if (size)
        memcpy(copy, bytes, size);
    *bad = -99;
    int ret = nsbox_plan_check(copy, size, bad);
    uint32_t op;
    if (ret == 0)
        CHECK(walk_plan(copy, &op));
    CHECK(ret == 0 || ret == -EINVAL);
    free(copy);
    return ret;
}

/* Is a plan of these ops accepted? If not, *bad is where it was refused. */
static int accepts(const nsbox_op *ops, uint32_t nops, int32_t *bad)
{
    struct blob b = make(ops, nops);
    int ret = verdict(b.bytes, b.size, bad);
    free(b.bytes);
    return ret == 0;
}

static int takes(nsbox_op op)
{
    int32_t bad;
    int ok = accepts(&op, 1, &bad);
    CHECK(bad == (ok ? -1 : 0));
    return ok;
}

static int has_path(uint32_t code)
{
    return code != NSBOX_OP_HOSTNAME && code != NSBOX_OP_LOOPBACK;
}

/* ---- tests */

static void layout(void)
{
    CHECK(sizeof(nsbox_plan) == 16);
    CHECK(sizeof(nsbox_op) == 40);
    CHECK(offsetof(nsbox_op, size) == 32);
    CHECK(_Alignof(nsbox_op) == 8);
}

static void empty_plan(void)
{
    int32_t bad;
    CHECK(accepts(0, 0, &bad));
    CHECK(bad == -1);
}

static void every_op(void)
{
    for (uint32_t code = 1; code < NSBOX_OP_END; code++)
        CHECK(takes(valid(code)));
    CHECK(!takes(valid(0)));
    CHECK(!takes(valid(NSBOX_OP_END)));
    CHECK(!takes(valid(0xffffffff)));
}

static void headers(void)
{
    struct blob b = make(0, 0);
    nsbox_plan *head = (nsbox_plan *)(void *)b.bytes;
    nsbox_plan right = *head;
    int32_t bad;
    for (uint64_t size = 0; size < b.size; size++)
        CHECK(verdict(b.bytes, size, &bad) == -EINVAL && bad == -1);
    head->magic++;
    CHECK(verdict(b.bytes, b.size, &bad) == -EINVAL && bad == -1);
    *head = right;
    head->version++;
    CHECK(verdict(b.bytes, b.size, &bad) == -EINVAL && bad == -1);
    *head = right;
    head->size--;
    CHECK(verdict(b.bytes, b.size, &bad) == -EINVAL && bad == -1);
    *head = right;
    const uint32_t counts[] = {2, 1000, 0x7fffffff, 0xffffffff, 0x06666666 /* times 40 is 2^32 - 16 */};
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        head->nops = counts[i];
        CHECK(verdict(b.bytes, b.size, &bad) == -EINVAL && bad == -1);
    }
    *head = right;
    CHECK(verdict(b.bytes, b.size, &bad) == 0);
    CHECK(nsbox_plan_check(b.bytes, 0x80000000, &bad) == -EINVAL); /* refused before it is looked at */
    head->size = 0x80000000;                                       /* true, but more than offsets are meant for */
    CHECK(nsbox_plan_check(b.bytes, 0x80000000, &bad) == -EINVAL);
    *head = right;
    CHECK(nsbox_plan_check(b.bytes, UINT64_MAX, &bad) == -EINVAL);
    free(b.bytes);
}

static void misaligned(void)
{
    nsbox_op op = valid(NSBOX_OP_DIR);
    struct blob b = make(&op, 1);
    uint8_t *room = must_malloc(b.size + 8);
    int32_t bad;
    for (int by = 1; by < 8; by++) {
        memcpy(room + by, b.bytes, b.size);
        CHECK(nsbox_plan_check(room + by, b.size, &bad) == -EINVAL && bad == -1);
    }
    free(room);
    free(b.bytes);
}

static void offsets(void)
{
    const uint32_t size = pool_start(1) + POOL;
    const uint32_t wrong[] = {
        0, 15, 16, pool_start(1) - 1, size, size + 1, 0x80000000, 0xffffffff, 0xffffffff - POOL,
    };
    for (uint32_t code = 1; code < NSBOX_OP_END; code++) {
        for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
            nsbox_op op = valid(code);
            op.dst = wrong[i];
            CHECK(takes(op) == !has_path(code));
            op = valid(code);
            op.src = wrong[i];
            int used = code == NSBOX_OP_BIND || code == NSBOX_OP_SYMLINK || code == NSBOX_OP_HOSTNAME ||
                       code == NSBOX_OP_FILE || code == NSBOX_OP_DATA || code == NSBOX_OP_OVERLAY;
            CHECK(takes(op) == !used);
        }
    }
}

static void strings(void)
{
    for (uint32_t code = 1; code < NSBOX_OP_END; code++) {
        const uint32_t no_path[] = {P_EMPTY, P_NAME, P_DATA}; /* empty, relative, without an end */
        for (unsigned i = 0; i < 3 && has_path(code); i++) {
            nsbox_op op = valid(code);
            op.dst = pool_start(1) + no_path[i];
            CHECK(!takes(op));
        }
    }
    nsbox_op op = valid(NSBOX_OP_BIND);
    op.src = pool_start(1) + P_NAME;
    CHECK(!takes(op)); /* relative */
    op = valid(NSBOX_OP_SYMLINK);
    op.src = pool_start(1) + P_EMPTY;
    CHECK(!takes(op));
    op.src = pool_start(1) + P_DATA; /* no end */
    CHECK(!takes(op));
    op = valid(NSBOX_OP_HOSTNAME);
    op.src = pool_start(1) + P_DATA;
    CHECK(!takes(op));
}

/* A blob of one op whose source is `length` times the letter c, with room for nothing else but "/b". */
static int takes_long(uint32_t code, char c, uint32_t length)
{
    uint32_t start = pool_start(1);
    uint64_t size = start + length + 1 + 3;
    uint8_t *bytes = must_malloc(size);
    nsbox_plan head = {.magic = NSBOX_MAGIC, .version = NSBOX_VERSION, .size = (uint32_t)size, .nops = 1};
    nsbox_op op = {.code = code, .fd = -1, .src = start, .dst = start + length + 1};
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, &op, sizeof op);
    memset(bytes + start, c, length);
    bytes[start + length] = 0;
    memcpy(bytes + start + length + 1, "/b", 3);
    int32_t bad;
    int ret = verdict(bytes, size, &bad);
    free(bytes);
    return ret == 0;
}

static void lengths(void)
{
    CHECK(takes_long(NSBOX_OP_BIND, '/', 1));
    CHECK(takes_long(NSBOX_OP_BIND, '/', NSBOX_PATH_MAX - 1));
    CHECK(!takes_long(NSBOX_OP_BIND, '/', NSBOX_PATH_MAX));
    CHECK(takes_long(NSBOX_OP_SYMLINK, 'x', NSBOX_PATH_MAX - 1));
    CHECK(!takes_long(NSBOX_OP_SYMLINK, 'x', NSBOX_PATH_MAX));
    CHECK(!takes_long(NSBOX_OP_SYMLINK, 'x', 1 << 20));
    CHECK(takes_long(NSBOX_OP_HOSTNAME, 'x', 64));
    CHECK(!takes_long(NSBOX_OP_HOSTNAME, 'x', 65));
}

static void flags(void)
{
    const uint32_t allowed[NSBOX_OP_END] = {
        [NSBOX_OP_BIND] = NSBOX_RDONLY | NSBOX_DEVICES | NSBOX_OPTIONAL | NSBOX_FROM_FD | NSBOX_NOFOLLOW |
                          NSBOX_PROBE_TTY | NSBOX_LIFTED,
        [NSBOX_OP_DATA] = NSBOX_RDONLY,
        [NSBOX_OP_PROC] = NSBOX_COVER | NSBOX_COVER_SYS | NSBOX_NESTS,
        [NSBOX_OP_OVERLAY] = NSBOX_OVL_TMP | NSBOX_OVL_RO | NSBOX_NOFOLLOW,
        [NSBOX_OP_MASK] = NSBOX_OPTIONAL | NSBOX_NOFOLLOW,
        [NSBOX_OP_REMOUNT_RO] = NSBOX_FREEZE | NSBOX_THAW,
    };
    for (uint32_t code = 1; code < NSBOX_OP_END; code++) {
        for (unsigned bit = 0; bit < 32; bit++) {
            nsbox_op op = valid(code);
            op.fd = 3;
            op.flags = 1u << bit;
            CHECK(takes(op) == ((allowed[code] >> bit & 1) != 0));
        }
    }
    nsbox_op op = valid(NSBOX_OP_OVERLAY);
    op.flags = NSBOX_OVL_TMP | NSBOX_OVL_RO;
    CHECK(!takes(op));
    for (uint32_t code = 1; code < NSBOX_OP_END; code++) {
        op = valid(code);
        op.mode = 07777;
        CHECK(takes(op));
        op.mode = 010000;
        CHECK(!takes(op));
    }
}

/* Lifted mounts: as many as there is room for, each with a path; and how they get back. */
static void lifted(void)
{
    const uint32_t covering[] = {NSBOX_OP_TMPFS, NSBOX_OP_PROC};
    for (unsigned i = 0; i < 2; i++) {
        nsbox_op op = valid(covering[i]);
        op.src += P_LAYERS;
        op.count = 13;
        CHECK(takes(op));
        op.count = 14; /* the pool's next string is empty */
        CHECK(!takes(op));
        op.count = NSBOX_MAX_LIFTED + 1;
        CHECK(!takes(op));
        op.count = UINT32_MAX;
        CHECK(!takes(op));
        op = valid(covering[i]);
        op.src = UINT32_MAX;
        CHECK(takes(op));
        op.count = 1;
        CHECK(!takes(op));
    }
    nsbox_op op = valid(NSBOX_OP_BIND);
    op.flags = NSBOX_LIFTED;
    CHECK(!takes(op));
    op.fd = 0;
    CHECK(takes(op));
    op.fd = NSBOX_MAX_LIFTED - 1;
    CHECK(takes(op));
    op.fd = NSBOX_MAX_LIFTED;
    CHECK(!takes(op));
    op.fd = 0;
    op.flags |= NSBOX_RDONLY;
    CHECK(!takes(op));
    op.flags = NSBOX_LIFTED | NSBOX_FROM_FD;
    CHECK(!takes(op));
}

static void descriptors(void)
{
    nsbox_op op = valid(NSBOX_OP_BIND);
    op.flags = NSBOX_FROM_FD;
    op.src = 0; /* not looked at */
    CHECK(!takes(op));
    op.fd = 0;
    CHECK(takes(op));
    op.fd = INT32_MIN;
    CHECK(!takes(op));
}

static void contents(void)
{
    const uint32_t kinds[] = {NSBOX_OP_FILE, NSBOX_OP_DATA};
    for (unsigned i = 0; i < 2; i++) {
        nsbox_op op = valid(kinds[i]);
        CHECK(takes(op)); /* up to the last byte */
        op.count = 5;
        CHECK(!takes(op));
        op.count = 0xffffffff;
        CHECK(!takes(op));
        op.count = 0xffffffff - op.src + 1; /* src + count is 0 in 32 bits */
        CHECK(!takes(op));
        op.src = pool_start(1) + POOL; /* nothing, at the very end */
        op.count = 0;
        CHECK(takes(op));
        op.count = 1;
        CHECK(!takes(op));
        op.src++;
        op.count = 0;
        CHECK(!takes(op));
    }
}

static void layers(void)
{
    const struct {
        uint32_t flags, least, most;
    } kinds[] = {
        {0, 3, NSBOX_MAX_LAYERS + 2}, /* with upper and work directory */
        {NSBOX_OVL_TMP, 1, NSBOX_MAX_LAYERS},
        {NSBOX_OVL_RO, 1, NSBOX_MAX_LAYERS},
    };
    for (unsigned i = 0; i < 3; i++) {
        nsbox_op op = valid(NSBOX_OP_OVERLAY);
        op.flags = kinds[i].flags;
        for (uint32_t count = 0; count < 20; count++) {
            op.count = count;
            CHECK(takes(op) == (count >= kinds[i].least && count <= kinds[i].most));
        }
        op.count = 0xffffffff;
        CHECK(!takes(op));
    }
    nsbox_op op = valid(NSBOX_OP_OVERLAY);
    op.src = pool_start(1) + P_EMPTY - 4; /* "/13", then an empty string */
    op.flags = NSBOX_OVL_RO;
    op.count = 1;
    CHECK(takes(op));
    op.count = 2;
    CHECK(!takes(op));
}

/* The reported index is that of the first bad op. */
static void which(void)
{
    nsbox_op ops[MOST_OPS];
    uint32_t shift = pool_start(MOST_OPS) - pool_start(1);
    int32_t bad;
    for (uint32_t i = 0; i < MOST_OPS; i++) {
        ops[i] = valid(1 + i % (NSBOX_OP_END - 1));
        ops[i].src += shift;
        ops[i].dst += shift;
    }
    CHECK(accepts(ops, MOST_OPS, &bad));
    CHECK(bad == -1);
    for (uint32_t i = MOST_OPS; i-- > 0;) {
        ops[i].code = NSBOX_OP_END;
        CHECK(!accepts(ops, MOST_OPS, &bad));
        CHECK(bad == (int32_t)i);
    }
}

static void truncated(void)
{
    nsbox_op op = valid(NSBOX_OP_FILE);
    struct blob b = make(&op, 1);
    int32_t bad;
    CHECK(verdict(b.bytes, b.size, &bad) == 0);
    for (uint64_t size = 0; size < b.size; size++) {
        CHECK(verdict(b.bytes, size, &bad) == -EINVAL);
        if (size < sizeof(nsbox_plan))
            continue;
        ((nsbox_plan *)(void *)b.bytes)->size = (uint32_t)size; /* the header says the truth, the ops don't */
        CHECK(verdict(b.bytes, size, &bad) == -EINVAL);
        ((nsbox_plan *)(void *)b.bytes)->size = (uint32_t)b.size;
    }
    free(b.bytes);
}

static void accessors(void)
{
    nsbox_op ops[2] = {valid(NSBOX_OP_DIR), valid(NSBOX_OP_SYMLINK)};
    ops[1].src += (uint32_t)sizeof(nsbox_op);
    ops[1].dst += (uint32_t)sizeof(nsbox_op);
    struct blob b = make(ops, 2);
    CHECK(plan_nops(b.bytes) == 2);
    CHECK(plan_op(b.bytes, 0)->code == NSBOX_OP_DIR);
    CHECK(plan_op(b.bytes, 1)->code == NSBOX_OP_SYMLINK);
    CHECK(!strcmp(plan_str(b.bytes, plan_op(b.bytes, 1)->src), "name"));
    CHECK(!strcmp(plan_str(b.bytes, plan_op(b.bytes, 1)->dst), "/b"));
    free(b.bytes);
}

int main(void)
{
    CHECK(!memcmp(pool + P_NAME, "name", 5) && !memcmp(pool + P_LAYERS, "/1", 3));
    CHECK(pool[P_EMPTY] == 0 && pool[P_EMPTY - 1] == 0 && !memcmp(pool + P_DATA, "data", 4) && P_DATA + 4 == POOL);
    layout();
    empty_plan();
    every_op();
    headers();
    misaligned();
    offsets();
    strings();
    lengths();
    flags();
    descriptors();
    lifted();
    contents();
    layers();
    which();
    truncated();
    accessors();
    printf("%d checks, %d failures\n", checks, failures);
    return failures || checks < 1000;
}
