/* own.c: tells which addresses are the host's own: those that its routes deliver to itself, on whatever interface
 * they are. */
#include "relay.h"
#include "net/verdict.h"
#include <errno.h>
#include <stddef.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <unistd.h>

struct request {
    struct nlmsghdr head;
    struct rtmsg body;
    struct rtattr attribute;
    uint8_t address[16];
};

static int kernel = -1;
static uint32_t number;

/* Ask for the route to an address, rtnetlink(7). 0 or -errno. */
static int ask_kernel(const union address *target)
{
    int is_six = target->any.sa_family == AF_INET6;
    size_t size = is_six ? 16 : 4;
    struct request request = {.head = {.nlmsg_type = RTM_GETROUTE, .nlmsg_flags = NLM_F_REQUEST, .nlmsg_seq = ++number},
                              .body = {.rtm_family = (uint8_t)target->any.sa_family,
                                       .rtm_dst_len = (uint8_t)(size * 8),
                                       .rtm_flags = is_six ? 0 : RTM_F_FIB_MATCH},
                              .attribute = {.rta_type = RTA_DST, .rta_len = (uint16_t)RTA_LENGTH(size)}};
    request.head.nlmsg_len = (uint32_t)(offsetof(struct request, address) + size);
    memcpy(request.address, is_six ? (const void *)&target->six.sin6_addr : (const void *)&target->four.sin_addr, size);
    if (kernel < 0)
        kernel = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    return kernel < 0 || send(kernel, &request, request.head.nlmsg_len, 0) < 0 ? -errno : 0;
}

/* Returns the type of the route, and in *bits the length of its prefix; RTN_UNREACHABLE if there is none; or -errno. */
static int read_answer(int *bits)
{
    _Alignas(struct nlmsghdr) uint8_t bytes[4096];
    const struct nlmsghdr *head = (const void *)bytes;
    do {
        ssize_t n = recv(kernel, bytes, sizeof bytes, 0);
        if (n < (ssize_t)sizeof *head)
            return n < 0 ? -errno : -EIO;
    } while (head->nlmsg_seq != number);
    if (head->nlmsg_type == NLMSG_ERROR)
        return RTN_UNREACHABLE;
    if (head->nlmsg_type != RTM_NEWROUTE)
        return -EIO;
    const struct rtmsg *route = NLMSG_DATA(head);
    *bits = route->rtm_dst_len;
    return route->rtm_type;
}

/* Is it one of the invented addresses? In a sandbox inside a sandbox, they stand for the names of the outer one's
 * list. */
static int is_invented(const union address *target)
{
    return target->any.sa_family == AF_INET && ntohl(target->four.sin_addr.s_addr) >> 16 == INVENTED >> 16;
}

int is_own_address(const union address *target)
{
    union address plain = address_unmapped(target);
    int bits = 0, type = ask_kernel(&plain);
    if (type == 0)
        type = read_answer(&bits);
    if (type == RTN_LOCAL && bits < 32 && is_invented(&plain))
        return 0;                                          /* for its own addresses, the host has a route of 32 bits */
    return type != RTN_UNICAST && type != RTN_UNREACHABLE; /* local, anycast, broadcast, multicast; or unknown */
}

int may_reach(const union address *target, uint16_t port, int protocol, uint32_t *reason)
{
    return may_lead_to(&list, target, port, protocol, is_own_address(target), reason);
}
