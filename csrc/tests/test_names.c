/* test_names.c: names and their addresses: which are kept, and which are used again. */
#include "check.h"
#include "relay/base/relay.h"
#include <stdlib.h>
#include <string.h>

static struct sandbox sandbox, other, *newest = &sandbox;
static int64_t clock_of_test = SECOND;

struct sandbox *sandbox_newest(void)
{
    return newest;
}

int64_t now(void)
{
    return clock_of_test;
}

static struct name *add(int number)
{
    char text[32];
    snprintf(text, sizeof text, "n%d.example", number);
    struct name *name = name_by_text(text);
    return name ? name : name_add(text);
}

/* Names that lead nowhere don't use addresses up, whatever their number; one that is being looked up is kept. */
static void forgotten(void)
{
    struct name *busy = add(-1);
    busy->is_busy = 1;
    for (int i = 0; i < 3 * MOST_NAMES; i++) {
        struct name *name = add(i);
        CHECK(name && !name_by_address(name->address));
        name->fresh_until = i;
        if (i % 1000 == 999)
            names_tick(i - 1);
    }
    CHECK(name_by_text("n0.example") == NULL && add(-1) == busy);
    busy->is_busy = 0;
    names_tick(INT64_MAX);
    CHECK(name_by_text("n-1.example") == NULL);
}

/* An address that a sandbox has learned belongs to no other name while that sandbox lives. */
static void known(void)
{
    struct name *kept = add(1), *gone = add(2);
    uint32_t address = gone->address;
    CHECK(kept->address != gone->address && kept->address >= INVENTED_FIRST);
    name_tell(&sandbox, kept);
    name_tell(&other, kept);
    CHECK(sandbox.n_names == 1 && other.n_names == 0);
    CHECK(name_is_told(&sandbox, kept) && !name_is_told(&sandbox, gone));
    names_tick(INT64_MAX);
    CHECK(name_by_text("n1.example") == kept && name_by_address(kept->address) == kept);
    CHECK(!name_by_text("n2.example") && !name_by_address(address));
    for (int i = 0; i < 100; i++)
        CHECK(add(1000 + i)->address != kept->address);
    names_tick(INT64_MAX);
    CHECK(!name_by_address(0) && !name_by_address(INVENTED_FIRST + MOST_NAMES) && !name_by_address(UINT32_MAX));
}

static void too_many(void)
{
    int n = 0;
    for (struct name *name; (name = add(100000 + n)); n++)
        name_tell(&sandbox, name);
    CHECK(n == MOST_NAMES - 1 && add(1) && !add(99999));
    /* Names of sandboxes that have ended don't block others; those whose address a living one has learned stay. */
    struct name *kept = name_by_text("n1.example"), *busy = name_by_text("n100001.example");
    newest = &other;
    name_use(&other, name_by_text("n100002.example"));
    busy->is_busy = 1;
    CHECK(!add(99999)); /* a sweep has just been done */
    clock_of_test += SECOND;
    struct name *name = add(99999);
    CHECK(name && add(99998) && !name_by_text("n100000.example"));
    CHECK(name_by_text("n1.example") == kept && name_by_text("n100001.example") == busy);
    CHECK(name_by_text("n100002.example") && !name_is_told(&other, name_by_text("n100002.example")));
    CHECK(name_is_told(&other, kept) && !name_by_address(name->address));
    names_tick(INT64_MAX);
    CHECK(!name_by_text("n99999.example") && name_by_text("n1.example") == kept);
}

int main(void)
{
    forgotten();
    known();
    too_many();
    fprintf(stderr, "%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
