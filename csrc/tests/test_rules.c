/* test_rules.c: what a list allows, and which addresses a name may have. */
#include "check.h"
#include "net/rules.h"
#include <stdlib.h>
#include <string.h>

enum { MOST = 8 };

static struct {
    nsbox_net_rules head;
    nsbox_net_rule rules[MOST];
    char names[256];
} list;
static size_t names_size;
static uint8_t *blob;
static struct rules rules;

static nsbox_net_rule *add(uint32_t kind, uint32_t first, uint32_t last)
{
    nsbox_net_rule *rule = &list.rules[list.head.n_rules++];
    *rule = (nsbox_net_rule){.kind = kind, .first_port = first, .last_port = last, .bits = 32};
    return rule;
}

static nsbox_net_rule *add_name(uint32_t kind, const char *name, uint32_t port)
{
    nsbox_net_rule *rule = add(kind, port ? port : 1, port ? port : 65535);
    rule->name = (uint32_t)names_size;
    rule->name_size = (uint32_t)strlen(name);
    memcpy(list.names + names_size, name, strlen(name));
    names_size += strlen(name);
    return rule;
}

static nsbox_net_rule *add_addresses(uint32_t address, uint32_t bits, uint32_t port)
{
    nsbox_net_rule *rule = add(NSBOX_NET_ADDRESSES, port ? port : 1, port ? port : 65535);
    rule->address = address;
    rule->bits = bits;
    return rule;
}

static void clear(void)
{
    memset(&list, 0, sizeof list);
    names_size = 0;
}

/* In a piece of the heap of exactly its size. */
static int seal(void)
{
    size_t entries = list.head.n_rules * sizeof *list.rules, size = sizeof list.head + entries + names_size;
    list.head.magic = NSBOX_NET_MAGIC;
    list.head.version = NSBOX_NET_VERSION;
    list.head.size = (uint32_t)size;
    free(blob);
    blob = malloc(size);
    if (!blob)
        abort();
    memcpy(blob, &list.head, sizeof list.head);
    memcpy(blob + sizeof list.head, list.rules, entries);
    memcpy(blob + sizeof list.head + entries, list.names, names_size);
    return rules_read(&rules, blob, size);
}

static void names(void)
{
    clear();
    add_name(NSBOX_NET_NAME, "a.example", 443);
    add_name(NSBOX_NET_BELOW, "hub.example", 443);
    add_name(NSBOX_NET_NAME, "gist.hub.example", 0)->flags = NSBOX_NET_DENY;
    add_name(NSBOX_NET_NAME, "b.hub.example", 22)->flags = NSBOX_NET_DENY;
    add_name(NSBOX_NET_NAME, "time.example", 123)->flags = NSBOX_NET_UDP;
    CHECK(!seal());
    CHECK(rules_name(&rules, "a.example") == VERDICT_YES && rules_name(&rules, "b.a.example") == VERDICT_NO);
    CHECK(rules_name(&rules, "xa.example") == VERDICT_NO && rules_name(&rules, "a.exampl") == VERDICT_NO);
    CHECK(rules_name(&rules, "") == VERDICT_NO && rules_name(&rules, "a.example.") == VERDICT_NO);
    CHECK(rules_name(&rules, "x.hub.example") == VERDICT_YES && rules_name(&rules, "x.y.hub.example") == VERDICT_YES);
    CHECK(rules_name(&rules, "hub.example") == VERDICT_NO && rules_name(&rules, ".hub.example") == VERDICT_NO);
    CHECK(rules_name(&rules, "xhub.example") == VERDICT_NO);
    CHECK(rules_spells(&rules, "a.example") && rules_spells(&rules, "time.example"));
    CHECK(!rules_spells(&rules, "x.hub.example") && !rules_spells(&rules, "gist.hub.example"));
    CHECK(!rules_spells(&rules, "b.a.example") && !rules_spells(&rules, ""));
    CHECK(rules.has_udp);
    CHECK(rules_name(&rules, "gist.hub.example") == VERDICT_DENIED);
    CHECK(rules_name(&rules, "b.hub.example") == VERDICT_YES);
    CHECK(rules_name_port(&rules, "a.example", 443, PROTOCOL_TCP) == VERDICT_YES);
    CHECK(rules_name_port(&rules, "a.example", 444, PROTOCOL_TCP) == VERDICT_NO);
    CHECK(rules_name_port(&rules, "a.example", 443, PROTOCOL_UDP) == VERDICT_NO);
    CHECK(rules_name_port(&rules, "gist.hub.example", 443, PROTOCOL_TCP) == VERDICT_DENIED);
    CHECK(rules_name_port(&rules, "b.hub.example", 443, PROTOCOL_TCP) == VERDICT_YES);
    CHECK(rules_name_port(&rules, "b.hub.example", 22, PROTOCOL_TCP) == VERDICT_DENIED);
    CHECK(rules_name_port(&rules, "time.example", 123, PROTOCOL_UDP) == VERDICT_YES);
    CHECK(rules_name_port(&rules, "time.example", 123, PROTOCOL_TCP) == VERDICT_NO);
}

static void addresses(void)
{
    clear();
    add_addresses(0x0a010200, 24, 5432);
    add_addresses(0x0a0102ff, 32, 5432)->flags = NSBOX_NET_DENY;
    add(NSBOX_NET_LOCALHOST, 8000, 8001);
    add_addresses(0x0a010202, 32, 5433);
    CHECK(!seal());
    CHECK(rules_address(&rules, 0x0a010201, 5432, PROTOCOL_TCP, 0) == VERDICT_YES);
    CHECK(rules_address(&rules, 0x0a010201, 5432, PROTOCOL_TCP, 1) == VERDICT_NO); /* others of the network are meant */
    CHECK(rules_address(&rules, 0x0a010202, 5433, PROTOCOL_TCP, 1) == VERDICT_YES); /* named, so meant */
    CHECK(rules_address(&rules, 0x0a0102ff, 5432, PROTOCOL_TCP, 0) == VERDICT_DENIED);
    CHECK(rules_address(&rules, 0x0a010300, 5432, PROTOCOL_TCP, 0) == VERDICT_NO);
    CHECK(rules_address(&rules, 0x0a0101ff, 5432, PROTOCOL_TCP, 0) == VERDICT_NO);
    CHECK(rules_address(&rules, 0x0a010201, 5433, PROTOCOL_TCP, 0) == VERDICT_NO);
    CHECK(rules_address(&rules, 0x0a0102ff, 5432, PROTOCOL_TCP, 1) == VERDICT_DENIED);
    CHECK(rules_localhost(&rules, 8001) == VERDICT_YES && rules_localhost(&rules, 8002) == VERDICT_NO);
    CHECK(rules_address(&rules, 0x7f000001, 8000, PROTOCOL_TCP, 0) == VERDICT_NO);
    CHECK(rules_name(&rules, "localhost") == VERDICT_NO);
}

static void all_that_is_public(void)
{
    clear();
    add(NSBOX_NET_ANY, 1, 65535);
    CHECK(!seal());
    CHECK(rules_name(&rules, "any.example") == VERDICT_YES);
    CHECK(!rules.has_udp && !rules_spells(&rules, "any.example"));
    CHECK(rules_address(&rules, 0xcb007101, 80, PROTOCOL_TCP, 0) == VERDICT_YES);
    CHECK(rules_address(&rules, 0xcb007101, 80, PROTOCOL_TCP, 1) == VERDICT_NO);
    CHECK(rules_address(&rules, 0xcb007101, 80, PROTOCOL_UDP, 0) == VERDICT_NO);
    static const uint32_t special[] = {0x0a000001, 0x7f000001, 0xa9fea9fe, 0xc0a80101, 0xac1fffff, 0x64400001,
                                       0xe0000001, 0xffffffff, 0,          0xc0000001, 0xc0586301};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        CHECK(rules_address(&rules, special[i], 80, PROTOCOL_TCP, 0) == VERDICT_NO);
    CHECK(rules_localhost(&rules, 80) == VERDICT_NO);
}

struct address {
    uint8_t bytes[16];
    size_t size;
    int is_private, is_special;
};

static const struct address KINDS[] = {
    {{203, 0, 113, 1}, 4, 0, 0},
    {{172, 15, 0, 1}, 4, 0, 0},
    {{172, 32, 0, 1}, 4, 0, 0},
    {{198, 18, 1, 1}, 4, 0, 0}, /* of a sandbox around this one */
    {{10, 1, 2, 3}, 4, 1, 1},
    {{100, 127, 255, 255}, 4, 1, 1},
    {{100, 128, 0, 0}, 4, 0, 0},
    {{127, 0, 0, 1}, 4, 0, 1},
    {{169, 254, 169, 254}, 4, 0, 1},
    {{240, 0, 0, 1}, 4, 0, 1},
    {{0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 16, 0, 0},
    {{0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 16, 0, 1}, /* Teredo */
    {{0}, 16, 0, 1},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 16, 0, 1},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, 16, 0, 1},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1}, 16, 1, 1},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 203, 0, 113, 1}, 16, 0, 0},
    {{0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 169, 254, 169, 254}, 16, 0, 1},
    {{0, 0x64, 0xff, 0x9b, 0, 1}, 16, 0, 1},
    {{0x20, 2, 192, 168, 1, 1}, 16, 1, 1},
    {{0xfd, 0}, 16, 1, 1},
    {{0xfe, 0x80}, 16, 0, 1},
    {{0xfe, 0xbf}, 16, 0, 1},
    {{0xff, 2}, 16, 0, 1},
};

static void addresses_of_names(void)
{
    for (uint32_t private = 0; private < 2; private ++) {
        clear();
        add_name(NSBOX_NET_NAME, "a.example", 443);
        list.head.flags = private ? NSBOX_NET_PRIVATE : 0;
        CHECK(!seal());
        for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) {
            const struct address *kind = &KINDS[i];
            CHECK(address_is_special(kind->bytes, kind->size) == kind->is_special);
            int may = !kind->is_special || (private && kind->is_private);
            CHECK(rules_may_resolve(&rules, kind->bytes, kind->size, 443, PROTOCOL_TCP, 0) == may);
            CHECK(!rules_may_resolve(&rules, kind->bytes, kind->size, 443, PROTOCOL_TCP, 1));
        }
    }
    add_addresses(0xa9fe0000, 16, 443);
    add_addresses(0x0a010203, 32, 443);
    add_addresses(0xcb007101, 32, 0)->flags = NSBOX_NET_DENY;
    CHECK(!seal());
    CHECK(rules_may_resolve(&rules, (const uint8_t *)"\xa9\xfe\1\1", 4, 443, PROTOCOL_TCP, 0));
    CHECK(!rules_may_resolve(&rules, (const uint8_t *)"\xa9\xfe\1\1", 4, 444, PROTOCOL_TCP, 0));
    CHECK(rules_may_resolve(&rules, (const uint8_t *)"\xa9\xfe\1\1", 4, 0, PROTOCOL_TCP, 0));
    CHECK(!rules_may_resolve(&rules, (const uint8_t *)"\xa9\xfe\1\1", 4, 443, PROTOCOL_TCP, 1));
    CHECK(rules_may_resolve(&rules, (const uint8_t *)"\x0a\1\2\3", 4, 443, PROTOCOL_TCP, 1));
    CHECK(!rules_may_resolve(&rules, (const uint8_t *)"\xcb\0\x71\1", 4, 0, PROTOCOL_TCP, 0));
    CHECK(!rules_may_resolve(&rules, (const uint8_t *)"\xcb\0\x71\1", 4, 443, PROTOCOL_TCP, 0));
}

static const struct address LOOPBACK[] = {
    {{127, 0, 0, 1}, 4, 0, 1},
    {{127, 255, 255, 255}, 4, 0, 1},
    {{0}, 4, 0, 1}, /* a connection to it is one to 127.0.0.1 */
    {{0, 0, 0, 1}, 4, 0, 1},
    {{0}, 16, 0, 1},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 16, 0, 1},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 127, 0, 0, 1}, 16, 0, 1},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, 16, 0, 1},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0}, 16, 0, 1},
    {{0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 127, 0, 0, 1}, 16, 0, 1},
    {{0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 127, 1, 2, 3}, 16, 0, 1},
    {{0x20, 2, 127, 0, 0, 1}, 16, 0, 1},
};

/* Whatever is listed, even everything: no name has the host's loopback, and no number leads there. */
static void loopback(void)
{
    clear();
    add_name(NSBOX_NET_NAME, "a.example", 443);
    add_addresses(0, 0, 443);
    add_addresses(0x7f000001, 32, 443);
    add_addresses(0, 32, 443);
    list.head.flags = NSBOX_NET_PRIVATE;
    CHECK(!seal());
    for (size_t i = 0; i < sizeof LOOPBACK / sizeof *LOOPBACK; i++)
        for (int port = 0; port < 444; port += 443)
            for (int is_own = 0; is_own < 2; is_own++)
                CHECK(!rules_may_resolve(&rules, LOOPBACK[i].bytes, LOOPBACK[i].size, (uint16_t)port, PROTOCOL_TCP,
                                         is_own));
    CHECK(rules_address(&rules, 0x7f000001, 443, PROTOCOL_TCP, 1) == VERDICT_NO);
    CHECK(rules_address(&rules, 0, 443, PROTOCOL_TCP, 0) == VERDICT_NO);
    CHECK(rules_address(&rules, 0x0a010203, 443, PROTOCOL_TCP, 0) == VERDICT_YES);
    CHECK(rules_address(&rules, 0x0a010203, 443, PROTOCOL_TCP, 1) == VERDICT_NO);
    CHECK(rules_may_resolve(&rules, (const uint8_t *)"\x0a\1\2\3", 4, 443, PROTOCOL_TCP, 0));
    CHECK(!rules_may_resolve(&rules, (const uint8_t *)"\x0a\1\2\3", 4, 443, PROTOCOL_TCP, 1));
}

/* A list of denials, or of nothing, allows nothing. */
static void empty(void)
{
    clear();
    CHECK(!seal() && rules_name(&rules, "a.example") == VERDICT_NO);
    add_name(NSBOX_NET_NAME, "a.example", 443)->flags = NSBOX_NET_DENY;
    CHECK(!seal() && rules_name_port(&rules, "a.example", 443, PROTOCOL_TCP) == VERDICT_DENIED);
}

/* A sound list with one field changed isn't one. */
static void unsound(void)
{
    struct {
        size_t at;
        uint32_t value;
    } odd[] = {{offsetof(nsbox_net_rules, magic), 1},
               {offsetof(nsbox_net_rules, version), 2},
               {offsetof(nsbox_net_rules, size), 1},
               {offsetof(nsbox_net_rules, n_rules), UINT32_MAX},
               {offsetof(nsbox_net_rules, n_rules), 3},
               {offsetof(nsbox_net_rules, tls), 3},
               {sizeof(nsbox_net_rules) + offsetof(nsbox_net_rule, kind), 0},
               {sizeof(nsbox_net_rules) + offsetof(nsbox_net_rule, kind), 6},
               {sizeof(nsbox_net_rules) + offsetof(nsbox_net_rule, kind), NSBOX_NET_ANY},
               {sizeof(nsbox_net_rules) + offsetof(nsbox_net_rule, first_port), 0},
               {sizeof(nsbox_net_rules) + offsetof(nsbox_net_rule, first_port), 444},
               {sizeof(nsbox_net_rules) + offsetof(nsbox_net_rule, last_port), 65536},
               {sizeof(nsbox_net_rules) + offsetof(nsbox_net_rule, bits), 33},
               {sizeof(nsbox_net_rules) + offsetof(nsbox_net_rule, name), 10},
               {sizeof(nsbox_net_rules) + offsetof(nsbox_net_rule, name_size), UINT32_MAX},
               {sizeof(nsbox_net_rules) + offsetof(nsbox_net_rule, name_size), 0}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        clear();
        add_name(NSBOX_NET_NAME, "a.example", 443);
        CHECK(!seal());
        memcpy(blob + odd[i].at, &odd[i].value, 4);
        CHECK(rules_read(&rules, blob, list.head.size) < 0);
    }
    clear();
    add_addresses(0x0a000001, 8, 443);
    CHECK(seal() < 0);
    clear();
    CHECK(!seal());
    for (size_t n = 0; n < sizeof list.head; n++)
        CHECK(rules_read(&rules, blob, n) < 0);
}

int main(void)
{
    names();
    addresses();
    empty();
    all_that_is_public();
    addresses_of_names();
    loopback();
    unsound();
    free(blob);
    fprintf(stderr, "%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
