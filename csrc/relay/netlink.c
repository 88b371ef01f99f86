/* netlink.c: addresses, routes and rules of a sandbox's net namespace, in one message to the kernel (rtnetlink(7)).
 *
 * Whatever a policy lists is local to it: packets go to lo, where the relay sees them. All else has no route.
 */
#include "relay.h"
#include <errno.h>
#include <linux/fib_rules.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <unistd.h>

enum { LO = 1, ROOM = 256 /* bytes of one request, with its attributes */ };
enum { FIRST_RULE = 1, FIRST_BLACKHOLE = 4, LAST_RULE = 1000 };

struct batch {
    _Alignas(struct nlmsghdr) uint8_t bytes[32768];
    size_t size;
    int n, fd, error;      /* n: requests in it; error: the first, as -errno */
    struct nlmsghdr *head; /* of the request that is being made */
};

/* Hear of each request. That something is there already is no failure: lists repeat. */
static void receive(struct batch *b)
{
    _Alignas(struct nlmsghdr) static uint8_t bytes[32768];
    while (b->n > 0) {
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
            b->n--;
            if (answer->error && answer->error != -EEXIST && !b->error)
                b->error = answer->error;
        }
    }
}

static void flush(struct batch *b)
{
    if (!b->error && send(b->fd, b->bytes, b->size, 0) < 0)
        b->error = -errno;
    if (!b->error)
        receive(b);
    b->size = 0;
    b->n = 0;
}

static void begin(struct batch *b, uint16_t type, uint16_t flags, const void *body, size_t size)
{
    if (b->size + ROOM > sizeof b->bytes)
        flush(b);
    b->head = (struct nlmsghdr *)(void *)(b->bytes + b->size);
    *b->head = (struct nlmsghdr){.nlmsg_type = type,
                                 .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | NLM_F_ACK | flags),
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

static void end(struct batch *b)
{
    b->size += NLMSG_ALIGN(b->head->nlmsg_len);
}

static void lo_up(struct batch *b)
{
    const struct ifinfomsg body = {.ifi_index = LO, .ifi_flags = 1 /* IFF_UP */, .ifi_change = 1};
    begin(b, RTM_NEWLINK, 0, &body, sizeof body);
    end(b);
}

/* Without an address that isn't 127.0.0.1, AI_ADDRCONFIG (getaddrinfo(3)) takes IPv4 for not there. */
static void address(struct batch *b, uint32_t value)
{
    const struct ifaddrmsg body = {.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_index = LO};
    begin(b, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &body, sizeof body);
    put32(b, IFA_ADDRESS, htonl(value));
    put32(b, IFA_LOCAL, htonl(value));
    end(b);
}

/* These addresses are local. A preferred source, or the source of a connection would be its destination. */
static void route(struct batch *b, uint32_t net, uint32_t bits)
{
    const struct rtmsg body = {.rtm_family = AF_INET,
                               .rtm_dst_len = (uint8_t)bits,
                               .rtm_table = RT_TABLE_LOCAL,
                               .rtm_protocol = RTPROT_STATIC,
                               .rtm_scope = RT_SCOPE_HOST,
                               .rtm_type = RTN_LOCAL};
    begin(b, RTM_NEWROUTE, NLM_F_CREATE, &body, sizeof body);
    if (bits)
        put32(b, RTA_DST, htonl(net));
    put32(b, RTA_OIF, LO);
    put32(b, RTA_PREFSRC, htonl(OWN_ADDRESS));
    end(b);
}

static void begin_rule(struct batch *b, uint32_t priority, uint8_t action, uint32_t source, uint32_t bits)
{
    const struct fib_rule_hdr body = {.family = AF_INET,
                                      .src_len = (uint8_t)bits,
                                      .table = action == FR_ACT_TO_TBL ? RT_TABLE_LOCAL : 0,
                                      .action = action};
    begin(b, RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, &body, sizeof body);
    if (bits)
        put32(b, FRA_SRC, htonl(source));
    put32(b, FRA_PRIORITY, priority);
}

static void lookup(struct batch *b, uint32_t priority, uint32_t source, uint32_t bits)
{
    begin_rule(b, priority, FR_ACT_TO_TBL, source, bits);
    end(b);
}

/* What the kernel itself answers to a SYN for which nobody listens yet is swallowed, and what a server inside answers
 * that squats on an address of ours. TCP only: a refusal of UDP is true. */
static void blackhole(struct batch *b, uint32_t priority, uint32_t source, uint32_t bits)
{
    const uint8_t tcp = IPPROTO_TCP;
    begin_rule(b, priority, FR_ACT_BLACKHOLE, source, bits);
    put(b, FRA_IP_PROTO, &tcp, 1);
    end(b);
}

/* Our own packets go through, whatever their source is. */
static void marked(struct batch *b)
{
    begin_rule(b, FIRST_RULE, FR_ACT_TO_TBL, 0, 0);
    put32(b, FRA_FWMARK, MARK);
    put32(b, FRA_FWMASK, UINT32_MAX);
    end(b);
}

static void drop_first_rule(struct batch *b)
{
    const struct fib_rule_hdr body = {.family = AF_INET, .table = RT_TABLE_LOCAL, .action = FR_ACT_TO_TBL};
    begin(b, RTM_DELRULE, 0, &body, sizeof body);
    put32(b, FRA_PRIORITY, 0);
    end(b);
}

/* The eight prefixes are all of IPv4 but 0/8: connect(2) looks its route up before it has a source, and that must be
 * found. */
static void own_sources(struct batch *b)
{
    lookup(b, FIRST_RULE + 1, 0x7f000000, 8);
    lookup(b, FIRST_RULE + 2, OWN_NET, OWN_BITS);
    for (uint32_t i = 0; i < 8; i++)
        blackhole(b, FIRST_BLACKHOLE + i, 0x01000000u << i, 8 - i);
}

/* Routes to what is listed. What an entry denies has one too, and is refused by us. */
static void listed(struct batch *b, const struct rules *rules)
{
    route(b, INVENTED, INVENTED_BITS);
    for (uint32_t i = 0; i < rules->head->n_rules; i++) {
        const nsbox_net_rule *rule = &rules->rules[i];
        if (rule->flags & NSBOX_NET_DENY)
            continue;
        if (rule->kind == NSBOX_NET_ADDRESSES)
            route(b, rule->address, rule->bits);
        if (rule->kind == NSBOX_NET_ANY)
            route(b, 0, 0);
    }
}

int netlink_set_up(const struct rules *rules)
{
    static struct batch b; /* not on the stack, which is a small one */
    int on = 1;
    b = (struct batch){.fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)};
    if (b.fd < 0)
        return -errno;
    setsockopt(b.fd, SOL_NETLINK, NETLINK_CAP_ACK, &on, sizeof on); /* answers don't repeat requests, Linux 4.2 */
    lo_up(&b);
    address(&b, OWN_ADDRESS);
    address(&b, OWN_DNS);
    marked(&b);
    own_sources(&b);
    listed(&b, rules);
    lookup(&b, LAST_RULE, 0, 0);
    drop_first_rule(&b);
    flush(&b);
    close(b.fd);
    return b.error;
}
