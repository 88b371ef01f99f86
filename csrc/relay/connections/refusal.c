/* refusal.c: sends packets of our own into a sandbox: the answers to a SYN that leads nowhere. */
#include "connection.h"
#include <errno.h>

void send_packet(const struct sandbox *sandbox, const uint8_t *packet, size_t size, uint32_t target)
{
    const struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(target)};
    sendto(sandbox->out, packet, size, 0, (const struct sockaddr *)&to,
           sizeof to); /* if it is lost, the client asks again */
}

void syn_refuse(const struct sandbox *sandbox, const struct syn *syn, int error)
{
    uint8_t packet[64];
    size_t size;
    switch (error) {
    case ENETUNREACH:
        size = packet_unreachable(packet, syn, ICMP_NET);
        break;
    case EHOSTUNREACH:
    case ETIMEDOUT:
        size = packet_unreachable(packet, syn, ICMP_HOST);
        break;
    case EACCES:
        size = packet_unreachable(packet, syn, ICMP_POLICY);
        break;
    default:
        size = packet_reset(packet, syn);
    }
    send_packet(sandbox, packet, size, syn->source);
}

/* Returns the errno for a refusal: a known name has closed ports; an address that isn't listed leads nowhere. */
int error_of_refusal(const struct syn *syn, const struct name *name)
{
    return name || syn->target >> 24 == 127 ? ECONNREFUSED : EACCES;
}
