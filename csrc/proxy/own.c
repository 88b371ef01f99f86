/* own.c: tells which addresses are this machine's. */
#include "proxy.h"
#include <ifaddrs.h>
#include <string.h>

static int is_same(const struct sockaddr *a, const union address *b)
{
    if (!a || a->sa_family != b->any.sa_family)
        return 0;
    if (a->sa_family == AF_INET)
        return !memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr, &b->four.sin_addr, 4);
    if (a->sa_family != AF_INET6)
        return 0;
    return !memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr, &b->six.sin6_addr, 16);
}

int is_own_address(const union address *target)
{
    const union address plain = address_unmapped(target);
    struct ifaddrs *all;
    int found = 0;
    if (getifaddrs(&all) < 0)
        return 1;
    for (struct ifaddrs *one = all; one && !found; one = one->ifa_next) {
        found = is_same(one->ifa_addr, &plain);
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET) /* on macOS, a tunnel has its peer's address here */
            found = found || is_same(one->ifa_dstaddr, &plain);
    }
    freeifaddrs(all);
    return found;
}
