/* fuzz_plan.c: whatever nsbox_plan_check() accepts, the handlers can read. For libFuzzer, or with fuzz_main.c.
 *
 * An input is a blob. If its header isn't right, it gets a right one and is tried again, so that the fuzzer needn't
 * guess the header: what is worth finding lies behind it. corpus/ holds plans to begin with.
 */
#include "walk.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void judge(const uint8_t *plan, size_t size)
{
    int32_t bad;
    uint32_t op;
    int ret = nsbox_plan_check(plan, size, &bad);
    if (ret == 0 && (bad != -1 || !walk_plan(plan, &op)))
        abort();
    if (ret != 0 && (bad < -1 || (bad >= 0 && (uint32_t)bad >= plan_nops(plan))))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* A copy that is aligned, and has exactly this size, so that a byte read too far is noticed. */
    uint8_t *plan = calloc(size ? size : 1, 1);
    if (!plan)
        return 0;
    if (size)
        memcpy(plan, data, size);
    judge(plan, size);
    if (size >= sizeof(nsbox_plan)) {
        nsbox_plan *head = (nsbox_plan *)(void *)plan;
        uint32_t most = (uint32_t)((size - sizeof *head) / sizeof(nsbox_op));
        uint32_t nops = head->nops <= most ? head->nops : head->nops % (most + 1);
        *head = (nsbox_plan){.magic = NSBOX_MAGIC, .version = NSBOX_VERSION, .size = (uint32_t)size, .nops = nops};
        judge(plan, size);
    }
    free(plan);
    return 0;
}
