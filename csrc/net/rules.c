/* rules.c: reads entries in order; one with "!" wins over all others. */
#include "rules.h"
#include <errno.h>
#include <string.h>

static int is_sound(const nsbox_net_rule *rule, size_t names)
{
    int has_name = rule->kind == NSBOX_NET_NAME || rule->kind == NSBOX_NET_BELOW;
    uint32_t host = rule->bits < 32 ? UINT32_MAX >> rule->bits : 0;
    if (rule->kind < NSBOX_NET_NAME || rule->kind > NSBOX_NET_LOCALHOST || rule->bits > 32 || rule->address & host)
        return 0;
    if (rule->kind == NSBOX_NET_LOCALHOST && rule->flags & NSBOX_NET_UDP)
        return 0;
    if (!rule->first_port || rule->last_port > 65535 || rule->first_port > rule->last_port)
        return 0;
    return has_name == !!rule->name_size && rule->name <= names && rule->name_size <= names - rule->name;
}

int rules_read(struct rules *rules, const void *blob, size_t size)
{
    const nsbox_net_rules *head = blob;
    if (size < sizeof *head || size > NSBOX_NET_MOST || head->magic != NSBOX_NET_MAGIC ||
        head->version != NSBOX_NET_VERSION || head->size != size || head->tls > NSBOX_NET_TLS_OFF)
        return -EINVAL;
    if (head->n_rules > (size - sizeof *head) / sizeof(nsbox_net_rule))
        return -EINVAL;
    *rules = (struct rules){.head = head, .rules = (const void *)(head + 1)};
    size_t names = size - sizeof *head - head->n_rules * sizeof(nsbox_net_rule);
    rules->names = (const char *)(rules->rules + head->n_rules);
    for (uint32_t i = 0; i < head->n_rules; i++) {
        const nsbox_net_rule *rule = &rules->rules[i];
        if (!is_sound(rule, names))
            return -EINVAL;
        rules->has_udp |= rule->flags & NSBOX_NET_UDP && !(rule->flags & NSBOX_NET_DENY);
    }
    return 0;
}

static int names(const struct rules *rules, const nsbox_net_rule *rule, const char *name, size_t size)
{
    const char *text = rules->names + rule->name;
    size_t n = rule->name_size;
    switch (rule->kind) {
    case NSBOX_NET_ANY:
        return 1;
    case NSBOX_NET_NAME:
        return size == n && !memcmp(name, text, n);
    case NSBOX_NET_BELOW:
        return size > n + 1 && name[size - n - 1] == '.' && !memcmp(name + size - n, text, n);
    default:
        return 0;
    }
}

static int is_for(const nsbox_net_rule *rule, uint16_t port, int protocol)
{
    int its = rule->flags & NSBOX_NET_UDP ? PROTOCOL_UDP : PROTOCOL_TCP;
    return its == protocol && port >= rule->first_port && port <= rule->last_port;
}

/* Returns the verdict after one more entry that fits. */
static enum verdict judge(enum verdict so_far, const nsbox_net_rule *rule)
{
    return rule->flags & NSBOX_NET_DENY || so_far == VERDICT_DENIED ? VERDICT_DENIED : VERDICT_YES;
}

/* Is the entry for this port? If the port isn't known yet: for some port or, to deny a name or an address, for all
 * of them. */
static int may_be_for(const nsbox_net_rule *rule, uint16_t port, int protocol)
{
    if (port)
        return is_for(rule, port, protocol);
    return !(rule->flags & NSBOX_NET_DENY) || (rule->first_port == 1 && rule->last_port == 65535);
}

enum verdict rules_name(const struct rules *rules, const char *name)
{
    enum verdict outcome = VERDICT_NO;
    size_t size = strlen(name);
    for (uint32_t i = 0; i < rules->head->n_rules; i++) {
        const nsbox_net_rule *rule = &rules->rules[i];
        if (may_be_for(rule, 0, PROTOCOL_TCP) && names(rules, rule, name, size))
            outcome = judge(outcome, rule);
    }
    return outcome;
}

int rules_spells(const struct rules *rules, const char *name)
{
    size_t size = strlen(name);
    for (uint32_t i = 0; i < rules->head->n_rules; i++) {
        const nsbox_net_rule *rule = &rules->rules[i];
        if (rule->kind == NSBOX_NET_NAME && !(rule->flags & NSBOX_NET_DENY) && names(rules, rule, name, size))
            return rules_name(rules, name) == VERDICT_YES;
    }
    return 0;
}

enum verdict rules_name_port(const struct rules *rules, const char *name, uint16_t port, int protocol)
{
    enum verdict outcome = VERDICT_NO;
    size_t size = strlen(name);
    for (uint32_t i = 0; i < rules->head->n_rules; i++)
        if (is_for(&rules->rules[i], port, protocol) && names(rules, &rules->rules[i], name, size))
            outcome = judge(outcome, &rules->rules[i]);
    return outcome;
}

/* Does the entry mean this address? One of the host's own only if the entry is for that alone: an entry for a
 * network means the other addresses in it. */
static int has(const nsbox_net_rule *rule, uint32_t address, int is_own)
{
    uint32_t mask = rule->bits ? UINT32_MAX << (32 - rule->bits) : 0;
    int is_meant = !is_own || rule->bits == 32 || rule->flags & NSBOX_NET_DENY;
    return is_meant && rule->kind == NSBOX_NET_ADDRESSES && (address & mask) == rule->address;
}

static void in_network_order(uint8_t to[4], uint32_t address)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(address >> (24 - 8 * i));
}

enum verdict rules_address(const struct rules *rules, uint32_t address, uint16_t port, int protocol, int is_own)
{
    enum verdict outcome = VERDICT_NO;
    uint8_t bytes[4];
    in_network_order(bytes, address);
    if (address_is_loopback(bytes, sizeof bytes))
        return VERDICT_NO;
    int is_public = !is_own && !address_is_special(bytes, sizeof bytes);
    for (uint32_t i = 0; i < rules->head->n_rules; i++) {
        const nsbox_net_rule *rule = &rules->rules[i];
        if (is_for(rule, port, protocol) && (has(rule, address, is_own) || (rule->kind == NSBOX_NET_ANY && is_public)))
            outcome = judge(outcome, rule);
    }
    return outcome;
}

enum verdict rules_localhost(const struct rules *rules, uint16_t port)
{
    enum verdict outcome = VERDICT_NO;
    for (uint32_t i = 0; i < rules->head->n_rules; i++)
        if (rules->rules[i].kind == NSBOX_NET_LOCALHOST && is_for(&rules->rules[i], port, PROTOCOL_TCP))
            outcome = judge(outcome, &rules->rules[i]);
    return outcome;
}

/* ---- addresses that no name may have */

struct prefix {
    uint8_t bytes[16];
    unsigned bits;
};

static int is_in(const uint8_t *address, const struct prefix *prefix)
{
    unsigned whole = prefix->bits / 8, rest = prefix->bits % 8;
    if (memcmp(address, prefix->bytes, whole))
        return 0;
    return !rest || (address[whole] ^ prefix->bytes[whole]) >> (8 - rest) == 0;
}

static int is_in_any(const uint8_t *address, const struct prefix *prefixes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_in(address, &prefixes[i]))
            return 1;
    return 0;
}

/* Private networks: RFC 1918, RFC 6598 (carriers), RFC 4193. */
static const struct prefix PRIVATE4[] = {{{10}, 8}, {{100, 64}, 10}, {{172, 16}, 12}, {{192, 168}, 16}};
static const struct prefix PRIVATE6[] = {{{0xfc}, 7}};

/* Not 198.18.0.0/15, although it is for benchmarks (RFC 2544): in a sandbox inside a sandbox, names have such
 * addresses. */
static const struct prefix SPECIAL4[] = {{{0}, 8},          {{127}, 8},          {{169, 254}, 16},
                                         {{192, 0, 0}, 24}, {{192, 88, 99}, 24}, {{224}, 3}};
static const struct prefix SPECIAL6[] = {{{0xfe, 0x80}, 10}, {{0xfe, 0xc0}, 10}, {{0xff}, 8}, {{0x20, 1, 0, 0}, 32}};

/* These are the host itself: on Linux a connection to 0.0.0.0 or to :: goes to its loopback. */
static const struct prefix LOOPBACK4[] = {{{0}, 8}, {{127}, 8}};

/* IPv6 addresses that stand for IPv4 ones: ::/96 with :: and ::1, ::ffff:0:0/96, ::ffff:0:0:0/96 (RFC 2765),
 * 64:ff9b::/96, 64:ff9b:1::/48, 2002::/16. */
static const struct prefix MAPPED[] = {{{0}, 96},
                                       {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, 96},
                                       {{0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, 96},
                                       {{0, 0x64, 0xff, 0x9b}, 96}};
static const struct prefix TRANSLATED = {{0, 0x64, 0xff, 0x9b, 0, 1}, 48}, SIX_TO_FOUR = {{0x20, 2}, 16};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The IPv4 address that an IPv6 one stands for, or NULL. */
static const uint8_t *inner(const uint8_t *address)
{
    if (is_in_any(address, MAPPED, COUNT(MAPPED)))
        return address + 12;
    return is_in(address, &SIX_TO_FOUR) ? address + 2 : NULL;
}

int address_is_loopback(const uint8_t *address, size_t size)
{
    const uint8_t *four = size == 4 ? address : inner(address);
    return four && is_in_any(four, LOOPBACK4, COUNT(LOOPBACK4));
}

static int is_private(const uint8_t *address, size_t size)
{
    if (size == 4)
        return is_in_any(address, PRIVATE4, COUNT(PRIVATE4));
    const uint8_t *mapped = inner(address);
    return mapped ? is_private(mapped, 4) : is_in_any(address, PRIVATE6, COUNT(PRIVATE6));
}

static int is_nobodys(const uint8_t *address, size_t size)
{
    if (size == 4)
        return is_in_any(address, SPECIAL4, COUNT(SPECIAL4));
    const uint8_t *mapped = inner(address);
    if (mapped)
        return is_nobodys(mapped, 4);
    return is_in(address, &TRANSLATED) || is_in_any(address, SPECIAL6, COUNT(SPECIAL6));
}

int address_is_special(const uint8_t *address, size_t size)
{
    return is_private(address, size) || is_nobodys(address, size);
}

/* Does an entry for addresses list it, and none deny it? */
static enum verdict listed(const struct rules *rules, const uint8_t *address, size_t size, uint16_t port, int protocol,
                           int is_own)
{
    const uint8_t *four = size == 4 ? address : inner(address);
    enum verdict outcome = VERDICT_NO;
    if (!four)
        return outcome;
    uint32_t value = (uint32_t)four[0] << 24 | (uint32_t)four[1] << 16 | (uint32_t)four[2] << 8 | four[3];
    for (uint32_t i = 0; i < rules->head->n_rules; i++)
        if (may_be_for(&rules->rules[i], port, protocol) && has(&rules->rules[i], value, is_own))
            outcome = judge(outcome, &rules->rules[i]);
    return outcome;
}

int rules_may_resolve(const struct rules *rules, const uint8_t *address, size_t size, uint16_t port, int protocol,
                      int is_own)
{
    if (address_is_loopback(address, size))
        return 0;
    enum verdict outcome = listed(rules, address, size, port, protocol, is_own);
    if (outcome != VERDICT_NO)
        return outcome == VERDICT_YES;
    if (is_own || is_nobodys(address, size))
        return 0;
    return !is_private(address, size) || rules->head->flags & NSBOX_NET_PRIVATE;
}
