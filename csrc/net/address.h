/* address.h: addresses of either family, as the kernel takes them. */
#ifndef NSBOX_NET_ADDRESS_H
#define NSBOX_NET_ADDRESS_H

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

enum { MOST_TARGETS = 8 };                              /* addresses of a name that are tried */
enum { INVENTED = 0xc6120000, INVENTED_NET_BITS = 15 }; /* 198.18.0.0/15 (RFC 2544): names have such addresses inside */

union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

union address address_of(uint32_t four); /* in host order */
socklen_t address_size(const union address *address);
void address_set_port(union address *address, uint16_t port);

/* Returns the IPv4 address if an IPv6 address stands for one; otherwise the address itself. */
union address address_unmapped(const union address *address);

/* Is a socket connected to itself? That can happen at a port of this machine's that has no listener (RFC 9293, 3.5). */
int is_to_itself(int fd);

#endif
