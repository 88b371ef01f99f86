/* packet.h: IPv4, TCP and ICMP headers as bytes: what a SYN says, and the answers to it. Pure: no system call.
 *
 * Addresses and ports are in host order; bytes in a packet are in network order, at any alignment.
 */
#ifndef NSBOX_RELAY_PACKET_H
#define NSBOX_RELAY_PACKET_H

#include <stddef.h>
#include <stdint.h>

enum { PACKET_MOST = 128 }; /* bytes of a SYN: both headers with all options (60 + 60), and no data */

enum {
    ICMP_NET = 0,
    ICMP_HOST = 1,
    ICMP_PORT = 3,
    ICMP_NET_PROHIBITED = 9,
    ICMP_POLICY = 13
}; /* codes of "unreachable", RFC 792, RFC 1122 and RFC 1812 */

struct syn {
    uint32_t source, target;
    uint16_t source_port, target_port;
    uint32_t sequence, data;    /* data: bytes that came with it (TCP Fast Open, RFC 7413) */
    uint8_t bytes[PACKET_MOST]; /* its headers, as they came, except the length */
    size_t size;
};

/* Is this the first packet of a connection (SYN without ACK, no fragment)? size: of the whole packet; its first
 * PACKET_MOST bytes are enough. */
int packet_syn(const uint8_t *bytes, size_t size, struct syn *syn);

/* Write the checksum of a SYN's TCP part: the kernel leaves it out on the way through lo. */
void packet_seal(struct syn *syn);

/* Write the RST that answers a SYN; returns its size, 40. */
size_t packet_reset(uint8_t *to, const struct syn *syn);

/* Write the ICMP "unreachable" that answers a SYN; returns its size, 56. */
size_t packet_unreachable(uint8_t *to, const struct syn *syn, int code);

struct datagram {
    uint32_t source, target;
    uint16_t source_port, target_port;
    const uint8_t *data;
    size_t size;
};

enum { DATAGRAM_HEAD = 28, DATAGRAM_MOST = 65535 }; /* with its headers */

/* Is this a whole datagram of UDP? Its checksum isn't looked at: the kernel leaves it out on the way through lo. */
int packet_datagram(const uint8_t *bytes, size_t size, struct datagram *datagram);

/* Write the headers of a datagram, DATAGRAM_HEAD bytes; its data isn't looked at. */
void packet_datagram_head(uint8_t *to, const struct datagram *datagram);

/* Write the ICMP "unreachable" that answers a datagram; returns its size, 56. */
size_t packet_unreachable_udp(uint8_t *to, const struct datagram *datagram, int code);

#endif
