/* netlink.c: sets addresses, routes and rules of a sandbox's net namespace, in one message to the kernel
 * (rtnetlink(7)).
 *
 * Whatever a policy lists is local to the namespace: packets go to lo, where the relay sees them. Nothing else has a
 * route.
 */
#include "relay/base/relay.h"
#include <errno.h>
#include <linux/fib_rules.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <unistd.h>

enum { LO = 1, ROOM = 256 /* bytes of one request, with its attributes */ };
enum { FIRST_RULE = 1, FIRST_BLACKHOLE = 6, LAST_RULE = 1000 };

struct batch {
    _Alignas(struct nlmsghdr) uint8_t bytes[32768];
    size_t size;
    int n, fd, error;      /* n: how many requests; error: the first one, as -errno */
    struct nlmsghdr *head; /* of the request that is being made */
};

/* Read the kernel's answers: to each request that fails, and to the last one. It is no failure if something exists
 * already, or no longer exists: lists repeat. */
static void receive(struct batch *b)
{
    _Alignas(struct nlmsghdr) static uint8_t bytes[32768];
    for (int is_over = 0; !is_over;) {
        ssize_t n = recv(b->fd, bytes, sizeof bytes, 0);
        if (n < 0) {
            b->error = b->error ? b->error : -errno;
            return;
        }
        uint32_t size = (uint32_t)n;
        for (struct nlmsghdr *h = (void *)bytes; NLMSG_OK(h, size);
             size -= NLMSG_ALIGN(h->nlmsg_len), h = (void *)((uint8_t *)h + NLMSG_ALIGN(h->nlmsg_len))) {
            if (h->nlmsg_type != NLMSG_ERROR)
                continue;
            const struct nlmsgerr *answer = NLMSG_DATA(h);
            is_over |= h->nlmsg_seq == (uint32_t)b->n;
            if (answer->error && answer->error != -EEXIST && answer->error != -ESRCH && !b->error)
                b->error = answer->error;
        }
    }
}

static void flush(struct batch *b)
{
    if (!b->n)
        return;
    b->head->nlmsg_flags |= NLM_F_ACK;
    if (!b->error && send(b->fd, b->bytes, b->size, 0) < 0)
        b->error = -errno;
    if (!b->error)
        receive(b);
    b->size = 0;
    b->n = 0;
}

static void request_begin(struct batch *b, uint16_t type, uint16_t flags, const void *body, size_t size)
{
    if (b->size + ROOM > sizeof b->bytes)
        flush(b);
    b->head = (struct nlmsghdr *)(void *)(b->bytes + b->size);
    *b->head = (struct nlmsghdr){.nlmsg_type = type,
                                 .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags),
                                 .nlmsg_seq = (uint32_t)++b->n,
                                 .nlmsg_len = (uint32_t)NLMSG_LENGTH(size)};
    memcpy(NLMSG_DATA(b->head), body, size);
}

static void put(struct batch *b, uint16_t type, const void *value, size_t size)
{
    struct rtattr *attribute = (void *)((uint8_t *)b->head + NLMSG_ALIGN(b->head->nlmsg_len));
    attribute->rta_type = type;
    attribute->rta_len = (uint16_t)RTA_LENGTH(size);
    memcpy(RTA_DATA(attribute), value, size);
    b->head->nlmsg_len = (uint32_t)(NLMSG_ALIGN(b->head->nlmsg_len) + attribute->rta_len);
}

static void put32(struct batch *b, uint16_t type, uint32_t value)
{
    put(b, type, &value, sizeof value);
}

static void request_end(struct batch *b)
{
    b->size += NLMSG_ALIGN(b->head->nlmsg_len);
}

static void lo_up(struct batch *b)
{
    const struct ifinfomsg body = {.ifi_index = LO, .ifi_flags = 1 /* IFF_UP */, .ifi_change = 1};
    request_begin(b, RTM_NEWLINK, 0, &body, sizeof body);
    request_end(b);
}

/* Add an address: without one other than 127.0.0.1, AI_ADDRCONFIG (getaddrinfo(3)) concludes that there is no IPv4. */
static void address(struct batch *b, uint32_t value)
{
    const struct ifaddrmsg body = {.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = LO};
    request_begin(b, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &body, sizeof body);
    put32(b, IFA_ADDRESS, htonl(value));
    put32(b, IFA_LOCAL, htonl(value));
    request_end(b);
}

/* Add or remove a route that makes these addresses local. It has a preferred source: otherwise a connection's source
 * would be its destination. */
static void route(struct batch *b, uint16_t type, uint32_t net, uint32_t bits)
{
    const struct rtmsg body = {.rtm_family = AF_INET,
                               .rtm_dst_len = (uint8_t)bits,
                               .rtm_table = RT_TABLE_LOCAL,
                               .rtm_protocol = RTPROT_STATIC,
                               .rtm_scope = RT_SCOPE_HOST,
                               .rtm_type = RTN_LOCAL};
    request_begin(b, type, type == RTM_NEWROUTE ? NLM_F_CREATE : 0, &body, sizeof body);
    if (bits)
        put32(b, RTA_DST, htonl(net));
    put32(b, RTA_OIF, LO);
    put32(b, RTA_PREFSRC, htonl(OWN_ADDRESS));
    request_end(b);
}

static void begin_rule(struct batch *b, uint32_t priority, uint8_t action, uint32_t source, uint32_t bits)
{
    const struct fib_rule_hdr body = {.family = AF_INET,
                                      .src_len = (uint8_t)bits,
                                      .table = action == FR_ACT_TO_TBL ? RT_TABLE_LOCAL : 0,
                                      .action = action};
    request_begin(b, RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, &body, sizeof body);
    if (bits)
        put32(b, FRA_SRC, htonl(source));
    put32(b, FRA_PRIORITY, priority);
}

static void lookup(struct batch *b, uint32_t priority, uint32_t source, uint32_t bits)
{
    begin_rule(b, priority, FR_ACT_TO_TBL, source, bits);
    request_end(b);
}

static void blackhole(struct batch *b, uint32_t priority, uint8_t protocol)
{
    begin_rule(b, priority, FR_ACT_BLACKHOLE, 0, 0);
    put(b, FRA_IP_PROTO, &protocol, 1);
    request_end(b);
}

/* Swallow the kernel's own ICMP answers where datagrams may be allowed: we answer all of them ourselves. Elsewhere
 * the kernel's refusal is true, and comes at once. */
static void datagrams(struct batch *b)
{
    blackhole(b, FIRST_BLACKHOLE + 1, IPPROTO_ICMP);
}

/* Our own packets pass, whatever their source is. */
static void marked(struct batch *b)
{
    begin_rule(b, FIRST_RULE, FR_ACT_TO_TBL, 0, 0);
    put32(b, FRA_FWMARK, MARK);
    put32(b, FRA_FWMASK, UINT32_MAX);
    request_end(b);
}

static void drop_first_rule(struct batch *b)
{
    const struct fib_rule_hdr body = {.family = AF_INET, .table = RT_TABLE_LOCAL, .action = FR_ACT_TO_TBL};
    request_begin(b, RTM_DELRULE, 0, &body, sizeof body);
    put32(b, FRA_PRIORITY, 0);
    request_end(b);
}

/* connect(2) looks up its route before it has a source. If there is no route: ENETUNREACH. */
static void no_source(struct batch *b)
{
    lookup(b, FIRST_RULE + 3, INADDR_ANY, 32);
    begin_rule(b, FIRST_RULE + 4, FR_ACT_UNREACHABLE, INADDR_ANY, 32);
    request_end(b);
}

/* Drop TCP packets whose source isn't one of the command's own addresses. So the kernel's own answer to a SYN that
 * has no listener yet is swallowed, and so are the answers of a server inside that squats on one of our addresses. */
static void own_sources(struct batch *b)
{
    lookup(b, FIRST_RULE + 1, 0x7f000000, 8);
    lookup(b, FIRST_RULE + 2, OWN_NET, OWN_BITS);
    no_source(b);
    blackhole(b, FIRST_BLACKHOLE, IPPROTO_TCP);
}

/* Does a list make these addresses local? An address that one entry denies also has a route if another entry lists
 * it; we then refuse it ourselves. */
static int has_route(const struct rules *rules, const nsbox_net_rule *wanted)
{
    if (wanted->address == INVENTED && wanted->bits == INVENTED_BITS)
        return 1;
    for (uint32_t i = 0; i < rules->head->n_rules; i++) {
        const nsbox_net_rule *rule = &rules->rules[i];
        if (rule->kind == NSBOX_NET_ADDRESSES && !(rule->flags & NSBOX_NET_DENY) && rule->address == wanted->address &&
            rule->bits == wanted->bits)
            return 1;
    }
    return 0;
}

/* Must all addresses reach us? If the caller may be asked, they must. They must for a list that allows nothing, too: it
 * is there to show what a command tries. */
static int has_all(const struct rules *rules)
{
    return rules->has_any || !rules->allows || rules->head->flags & NSBOX_NET_ASKS;
}

/* Add routes to what is listed. */
static void listed(struct batch *b, const struct rules *rules)
{
    for (uint32_t i = 0; i < rules->head->n_rules; i++) {
        const nsbox_net_rule *rule = &rules->rules[i];
        if (rule->kind == NSBOX_NET_ADDRESSES && !(rule->flags & NSBOX_NET_DENY))
            route(b, RTM_NEWROUTE, rule->address, rule->bits);
    }
    if (has_all(rules))
        route(b, RTM_NEWROUTE, 0, 0);
}

/* Remove the routes to what is no longer listed. */
static void unlisted(struct batch *b, const struct rules *old, const struct rules *rules)
{
    for (uint32_t i = 0; i < old->head->n_rules; i++) {
        const nsbox_net_rule *rule = &old->rules[i];
        if (rule->kind == NSBOX_NET_ADDRESSES && !(rule->flags & NSBOX_NET_DENY) && !has_route(rules, rule))
            route(b, RTM_DELROUTE, rule->address, rule->bits);
    }
    if (has_all(old) && !has_all(rules))
        route(b, RTM_DELROUTE, 0, 0);
}

static struct batch batch; /* not on the stack, which is small */

static struct batch *batch_open(void)
{
    int on = 1;
    batch = (struct batch){.fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)};
    if (batch.fd < 0)
        return NULL;
    setsockopt(batch.fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on); /* answers don't repeat requests, Linux 4.2 */
    return &batch;
}

static int batch_close(struct batch *b)
{
    flush(b);
    close(b->fd);
    return b->error;
}

int netlink_set_up(const struct rules *rules)
{
    struct batch *b = batch_open();
    if (!b)
        return -errno;
    lo_up(b);
    address(b, OWN_ADDRESS);
    address(b, OWN_DNS);
    marked(b);
    own_sources(b);
    if (rules->has_udp)
        datagrams(b);
    route(b, RTM_NEWROUTE, INVENTED, INVENTED_BITS);
    listed(b, rules);
    lookup(b, LAST_RULE, 0, 0);
    drop_first_rule(b);
    return batch_close(b);
}

int netlink_update(const struct rules *old, const struct rules *rules)
{
    struct batch *b = batch_open();
    if (!b)
        return -errno;
    if (rules->has_udp)
        datagrams(b);
    listed(b, rules);
    unlisted(b, old, rules);
    return batch_close(b);
}
