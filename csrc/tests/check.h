/* check.h: CHECK, which counts, says where it failed and goes on; not assert, since release builds define NDEBUG. */
#ifndef NSBOX_TESTS_CHECK_H
#define NSBOX_TESTS_CHECK_H

#include <stdio.h>

static int failures, checks;

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        checks++;                                                                                                      \
        if (!(what)) {                                                                                                 \
            failures++;                                                                                                \
            fprintf(stderr, "%s:%d: %s: " #what "\n", __FILE__, __LINE__, __func__);                                   \
        }                                                                                                              \
    } while (0)

#endif
