/* packet.c: headers of IPv4 (RFC 791), TCP (RFC 9293) and ICMP (RFC 792), read and written. */
#include "packet.h"
#include <string.h>

enum {
    IP_HEAD = 20,
    TCP_HEAD = 20,
    ICMP_HEAD = 8,
    UDP_HEAD = 8,
    QUOTED = IP_HEAD + 8,
    PROTO_ICMP = 1,
    PROTO_TCP = 6,
    PROTO_UDP = 17
};
enum { SYN = 0x02, RST = 0x04, ACK = 0x10 };

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)get16(at) << 16 | get16(at + 2);
}

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put32(uint8_t *at, uint32_t value)
{
    put16(at, value >> 16);
    put16(at + 2, value);
}

/* The Internet checksum (RFC 1071) of these bytes, added to the sum so far. */
static uint32_t add(uint32_t sum, const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i + 1 < size; i += 2)
        sum += get16(bytes + i);
    return size % 2 ? sum + (uint32_t)(bytes[size - 1] << 8) : sum;
}

static uint32_t folded(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return ~sum & 0xffff;
}

/* Returns the checksum of a TCP part, with the pseudo header of the IP header before it. */
static uint32_t tcp_checksum(const uint8_t *ip, const uint8_t *tcp, size_t size)
{
    uint32_t sum = add(0, ip + 12, 8) + PROTO_TCP + (uint32_t)size;
    return folded(add(sum, tcp, size));
}

static size_t ip_head(const uint8_t *bytes)
{
    return (bytes[0] & 15u) * 4u;
}

int packet_syn(const uint8_t *bytes, size_t size, struct syn *syn)
{
    size_t there = size < PACKET_MOST ? size : PACKET_MOST;
    if (there < IP_HEAD + TCP_HEAD || bytes[0] >> 4 != 4 || bytes[9] != PROTO_TCP)
        return 0;
    size_t head = ip_head(bytes);
    if (head < IP_HEAD || head + TCP_HEAD > there || get16(bytes + 2) != size || get16(bytes + 6) & 0x3fff)
        return 0;
    const uint8_t *tcp = bytes + head;
    size_t both = head + (size_t)(tcp[12] >> 4) * 4u;
    if (both < head + TCP_HEAD || both > there || (tcp[13] & (SYN | ACK | RST)) != SYN)
        return 0;
    *syn = (struct syn){.source = get32(bytes + 12),
                        .target = get32(bytes + 16),
                        .source_port = get16(tcp),
                        .target_port = get16(tcp + 2),
                        .sequence = get32(tcp + 4),
                        .data = (uint32_t)(size - both),
                        .size = both};
    memcpy(syn->bytes, bytes, both);
    put16(syn->bytes + 2, (uint32_t)both); /* a client that sent data sends it again: it wasn't acknowledged */
    return 1;
}

void packet_seal(struct syn *syn)
{
    size_t head = ip_head(syn->bytes);
    uint8_t *tcp = syn->bytes + head;
    put16(tcp + 16, 0);
    put16(tcp + 16, tcp_checksum(syn->bytes, tcp, syn->size - head));
}

/* Write an IP header. The kernel writes its checksum, raw(7). */
static void put_ip(uint8_t *to, uint32_t source, uint32_t target, uint8_t protocol, size_t size)
{
    memset(to, 0, IP_HEAD);
    to[0] = 0x45;
    put16(to + 2, (uint32_t)size);
    to[6] = 0x40; /* don't fragment */
    to[8] = 64;
    to[9] = protocol;
    put32(to + 12, source);
    put32(to + 16, target);
}

size_t packet_reset(uint8_t *to, const struct syn *syn)
{
    uint8_t *tcp = to + IP_HEAD;
    memset(tcp, 0, TCP_HEAD);
    put_ip(to, syn->target, syn->source, PROTO_TCP, IP_HEAD + TCP_HEAD);
    put16(tcp, syn->target_port);
    put16(tcp + 2, syn->source_port);
    put32(tcp + 8, syn->sequence + 1 + syn->data); /* RFC 9293, 3.10.7.1 */
    tcp[12] = (TCP_HEAD / 4) << 4;
    tcp[13] = RST | ACK;
    put16(tcp + 16, tcp_checksum(to, tcp, TCP_HEAD));
    return IP_HEAD + TCP_HEAD;
}

/* Write the beginning of an "unreachable", which quotes the header and eight bytes of the packet that it is about. */
static uint8_t *put_icmp(uint8_t *to, uint32_t source, uint32_t target, int code)
{
    memset(to, 0, IP_HEAD + ICMP_HEAD + QUOTED);
    put_ip(to, source, target, PROTO_ICMP, IP_HEAD + ICMP_HEAD + QUOTED);
    to[IP_HEAD] = 3;
    to[IP_HEAD + 1] = (uint8_t)code;
    return to + IP_HEAD + ICMP_HEAD;
}

static size_t seal_icmp(uint8_t *to)
{
    put16(to + IP_HEAD + 2, folded(add(0, to + IP_HEAD, ICMP_HEAD + QUOTED)));
    return IP_HEAD + ICMP_HEAD + QUOTED;
}

size_t packet_unreachable(uint8_t *to, const struct syn *syn, int code)
{
    uint8_t *quoted = put_icmp(to, syn->target, syn->source, code);
    memcpy(quoted, syn->bytes, IP_HEAD);
    quoted[0] = 0x45; /* its options, if it had any, aren't quoted */
    put16(quoted + 10, 0);
    put16(quoted + 10, folded(add(0, quoted, IP_HEAD)));
    memcpy(quoted + IP_HEAD, syn->bytes + ip_head(syn->bytes), QUOTED - IP_HEAD);
    return seal_icmp(to);
}

int packet_datagram(const uint8_t *bytes, size_t size, struct datagram *datagram)
{
    if (size < DATAGRAM_HEAD || size > DATAGRAM_MOST || bytes[0] >> 4 != 4 || bytes[9] != PROTO_UDP)
        return 0;
    size_t head = ip_head(bytes);
    if (head < IP_HEAD || head + UDP_HEAD > size || get16(bytes + 2) != size || get16(bytes + 6) & 0x3fff)
        return 0;
    const uint8_t *udp = bytes + head;
    size_t length = get16(udp + 4);
    if (length < UDP_HEAD || length > size - head)
        return 0;
    *datagram = (struct datagram){.source = get32(bytes + 12),
                                  .target = get32(bytes + 16),
                                  .source_port = get16(udp),
                                  .target_port = get16(udp + 2),
                                  .data = udp + UDP_HEAD,
                                  .size = length - UDP_HEAD};
    return 1;
}

static void put_udp(uint8_t *to, const struct datagram *datagram)
{
    put16(to, datagram->source_port);
    put16(to + 2, datagram->target_port);
    put16(to + 4, (uint32_t)(UDP_HEAD + datagram->size));
    put16(to + 6, 0); /* no checksum, RFC 768 */
}

void packet_datagram_head(uint8_t *to, const struct datagram *datagram)
{
    put_ip(to, datagram->source, datagram->target, PROTO_UDP, DATAGRAM_HEAD + datagram->size);
    put_udp(to + IP_HEAD, datagram);
}

size_t packet_unreachable_udp(uint8_t *to, const struct datagram *datagram, int code)
{
    uint8_t *quoted = put_icmp(to, datagram->target, datagram->source, code);
    packet_datagram_head(quoted, datagram);
    put16(quoted + 10, folded(add(0, quoted, IP_HEAD)));
    return seal_icmp(to);
}
