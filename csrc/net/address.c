/* address.c: makes, compares and takes apart addresses. */
#include "address.h"
#include <string.h>

union address address_of(uint32_t four)
{
    return (union address){.four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(four)}};
}

socklen_t address_size(const union address *address)
{
    return address->any.sa_family == AF_INET6 ? sizeof address->six : sizeof address->four;
}

void address_set_port(union address *address, uint16_t port)
{
    if (address->any.sa_family == AF_INET6)
        address->six.sin6_port = htons(port);
    else
        address->four.sin_port = htons(port);
}

union address address_unmapped(const union address *address)
{
    union address four = {.four = {.sin_family = AF_INET}};
    if (address->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&address->six.sin6_addr))
        return *address;
    memcpy(&four.four.sin_addr, address->six.sin6_addr.s6_addr + 12, 4);
    return four;
}

int is_to_itself(int fd)
{
    union address here, there;
    socklen_t size = sizeof here, its = sizeof there;
    memset(&here, 0, sizeof here);
    memset(&there, 0, sizeof there);
    return !getsockname(fd, &here.any, &size) && !getpeername(fd, &there.any, &its) && size == its &&
           !memcmp(&here, &there, sizeof here);
}
