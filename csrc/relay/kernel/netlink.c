/* netlink.c: sets addresses, routes and rules of a sandbox's net namespace, in one message to the kernel
 * (rtnetlink(7)).
 *
 * Every address is local to the namespace: packets go to lo, where the relay sees them. So it hears of attempts that no
 * entry allows, too. No packet has another way: the kernel delivers it in the namespace, or nowhere.
 */
#include "relay/base/relay.h"
#include <errno.h>
#include <linux/fib_rules.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <unistd.h>

enum { LO = 1, ROOM = 256 /* bytes of one request, with its attributes */ };
enum { FIRST_RULE = 1, FIRST_BLACKHOLE = 5, LAST_RULE = 1000 };

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

static void begin_route(struct batch *b, uint8_t type, uint8_t bits)
{
    const struct rtmsg body = {.rtm_family = AF_INET,
                               .rtm_dst_len = bits,
                               .rtm_table = RT_TABLE_LOCAL,
                               .rtm_protocol = RTPROT_STATIC,
                               .rtm_scope = RT_SCOPE_HOST,
                               .rtm_type = type};
    request_begin(b, RTM_NEWROUTE, NLM_F_CREATE, &body, sizeof body);
}

/* Make all addresses local. The route has a preferred source: otherwise a connection's source would be its destination.
 */
static void all_local(struct batch *b)
{
    begin_route(b, RTN_LOCAL, 0);
    put32(b, RTA_OIF, LO);
    put32(b, RTA_PREFSRC, htonl(OWN_ADDRESS));
    request_end(b);
}

/* Multicast fails at once: lo would swallow it. */
static void no_multicast(struct batch *b)
{
    begin_route(b, RTN_UNREACHABLE, 4);
    put32(b, RTA_DST, htonl(INADDR_UNSPEC_GROUP));
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

/* Drop TCP packets whose source isn't one of the command's own addresses. So the kernel's own answer to a SYN that
 * has no listener yet is swallowed, and so are the answers of a server inside that squats on one of our addresses. */
static void own_sources(struct batch *b)
{
    lookup(b, FIRST_RULE + 1, 0x7f000000, 8);
    lookup(b, FIRST_RULE + 2, OWN_NET, OWN_BITS);
    lookup(b, FIRST_RULE + 3, INADDR_ANY, 32); /* connect(2) looks up its route before it has a source */
    blackhole(b, FIRST_BLACKHOLE, IPPROTO_TCP);
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

int netlink_set_up(int has_udp)
{
    struct batch *b = batch_open();
    if (!b)
        return -errno;
    lo_up(b);
    address(b, OWN_ADDRESS);
    address(b, OWN_DNS);
    marked(b);
    own_sources(b);
    if (has_udp)
        datagrams(b);
    all_local(b);
    no_multicast(b);
    lookup(b, LAST_RULE, 0, 0);
    drop_first_rule(b);
    return batch_close(b);
}

int netlink_update(int has_udp)
{
    struct batch *b = has_udp ? batch_open() : NULL;
    if (!b)
        return has_udp ? -errno : 0;
    datagrams(b);
    return batch_close(b);
}
