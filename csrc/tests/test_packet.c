/* test_packet.c: what is a SYN and what isn't, and the answers to one, to the byte. */
#include "check.h"
#include "relay/parsers/packet.h"
#include <string.h>

/* 198.19.0.1:40000 -> 198.18.1.0:443, sequence number 0x01020304, an option of four bytes (MSS 1460). */
static const uint8_t sample[44] = {0x45, 0,   0,    44, 0,    1,    0x40, 0, 64,   6, 0, 0, 198, 19,  0,
                                   1,    198, 18,   1,  0,    0x9c, 0x40, 1, 0xbb, 1, 2, 3, 4,   0,   0,
                                   0,    0,   0x60, 2,  0xff, 0xff, 0,    0, 0,    0, 2, 4, 5,   0xb4};

static int takes(const uint8_t *bytes, size_t size)
{
    struct syn syn;
    return packet_syn(bytes, size, &syn);
}

/* Is it still one with this byte changed? */
static int takes_with(size_t at, uint8_t value)
{
    uint8_t bytes[sizeof sample];
    memcpy(bytes, sample, sizeof bytes);
    bytes[at] = value;
    return takes(bytes, sizeof bytes);
}

/* Computed independently: the sum of all words of a part with its checksum is 0xffff. */
static unsigned sum(const uint8_t *bytes, size_t size, unsigned start)
{
    for (size_t i = 0; i < size; i += 2)
        start += (unsigned)(bytes[i] << 8 | bytes[i + 1]);
    while (start >> 16)
        start = (start & 0xffff) + (start >> 16);
    return start;
}

static unsigned tcp_sum(const uint8_t *ip, size_t size)
{
    return sum(ip + 20, size - 20, sum(ip + 12, 8, 6 + (unsigned)size - 20));
}

static void a_syn(void)
{
    struct syn syn;
    CHECK(packet_syn(sample, sizeof sample, &syn));
    CHECK(syn.source == 0xc6130001 && syn.target == 0xc6120100);
    CHECK(syn.source_port == 40000 && syn.target_port == 443);
    CHECK(syn.sequence == 0x01020304 && syn.data == 0 && syn.size == 44);
    CHECK(!memcmp(syn.bytes, sample, sizeof sample));
}

static void no_syn(void)
{
    for (size_t size = 0; size < sizeof sample; size++)
        CHECK(!takes(sample, size));
    CHECK(!takes_with(0, 0x65));  /* IPv6 */
    CHECK(!takes_with(0, 0x44));  /* a header of 16 bytes */
    CHECK(!takes_with(0, 0x4f));  /* one that leaves no room */
    CHECK(!takes_with(3, 45));    /* a length that isn't its own */
    CHECK(!takes_with(7, 1));     /* a later fragment */
    CHECK(!takes_with(6, 0x20));  /* the first of several */
    CHECK(!takes_with(9, 17));    /* UDP */
    CHECK(!takes_with(32, 0x40)); /* a TCP header of 16 bytes */
    CHECK(!takes_with(32, 0xf0));
    CHECK(!takes_with(33, 0x12)); /* SYN and ACK */
    CHECK(!takes_with(33, 0x06)); /* SYN and RST */
    CHECK(!takes_with(33, 0x10));
    CHECK(takes_with(33, 0xc2)); /* with ECN, RFC 3168 */
}

/* TCP Fast Open: the data is cut off, and acknowledged by a reset only. */
static void with_data(void)
{
    uint8_t bytes[1000] = {0}, reset[40];
    struct syn syn;
    memcpy(bytes, sample, sizeof sample);
    bytes[2] = 1000 >> 8;
    bytes[3] = 1000 & 255;
    CHECK(packet_syn(bytes, sizeof bytes, &syn));
    CHECK(syn.size == 44 && syn.data == 956 && !memcmp(syn.bytes, sample, 44));
    packet_reset(reset, &syn);
    CHECK(reset[28] == 1 && reset[29] == 2 && reset[30] == 6 && reset[31] == 0xc1); /* 0x01020304 + 957 */
}

static void with_a_checksum(void)
{
    struct syn syn;
    CHECK(packet_syn(sample, sizeof sample, &syn));
    packet_seal(&syn);
    CHECK(tcp_sum(syn.bytes, syn.size) == 0xffff);
    CHECK(!memcmp(syn.bytes, sample, 36) && !memcmp(syn.bytes + 38, sample + 38, 6));
}

static void a_reset(void)
{
    uint8_t bytes[64];
    struct syn syn;
    CHECK(packet_syn(sample, sizeof sample, &syn));
    CHECK(packet_reset(bytes, &syn) == 40);
    CHECK(bytes[0] == 0x45 && bytes[3] == 40 && bytes[9] == 6);
    CHECK(!memcmp(bytes + 12, sample + 16, 4) && !memcmp(bytes + 16, sample + 12, 4));
    CHECK(!memcmp(bytes + 20, sample + 22, 2) && !memcmp(bytes + 22, sample + 20, 2));
    CHECK(bytes[31] == 5 && bytes[30] == 3 && bytes[33] == 0x14 && bytes[32] == 0x50);
    CHECK(tcp_sum(bytes, 40) == 0xffff);
}

static void unreachable(void)
{
    uint8_t bytes[64];
    struct syn syn;
    CHECK(packet_syn(sample, sizeof sample, &syn));
    CHECK(packet_unreachable(bytes, &syn, ICMP_HOST) == 56);
    CHECK(bytes[9] == 1 && bytes[20] == 3 && bytes[21] == ICMP_HOST && sum(bytes + 20, 36, 0) == 0xffff);
    CHECK(bytes[28] == 0x45 && bytes[37] == 6 && sum(bytes + 28, 20, 0) == 0xffff);
    CHECK(!memcmp(bytes + 40, sample + 12, 8) && !memcmp(bytes + 48, sample + 20, 8));
    const struct datagram datagram = {0xc6130001, 0xc6120100, 5000, 123, NULL, 48};
    CHECK(packet_unreachable_udp(bytes, &datagram, ICMP_PORT) == 56);
    CHECK(bytes[21] == ICMP_PORT && bytes[37] == 17 && sum(bytes + 20, 36, 0) == 0xffff);
    CHECK(bytes[31] == 76 && bytes[53] == 56 && bytes[51] == 123);
}

/* 198.19.0.1:40000 -> 198.18.1.0:123, five bytes of data. */
static const uint8_t udp_sample[33] = {0x45, 0, 0, 33,   0,    1, 0x40, 0, 64, 17,   0,    0,   198, 19,  0,   1,  198,
                                       18,   1, 0, 0x9c, 0x40, 0, 123,  0, 13, 0xab, 0xcd, 'h', 'e', 'l', 'l', 'o'};

static int takes_datagram_with(size_t at, uint8_t value)
{
    struct datagram datagram;
    uint8_t bytes[sizeof udp_sample];
    memcpy(bytes, udp_sample, sizeof bytes);
    bytes[at] = value;
    return packet_datagram(bytes, sizeof bytes, &datagram);
}

static void a_datagram(void)
{
    struct datagram datagram;
    uint8_t bytes[64];
    CHECK(packet_datagram(udp_sample, sizeof udp_sample, &datagram));
    CHECK(datagram.source == 0xc6130001 && datagram.target == 0xc6120100);
    CHECK(datagram.source_port == 40000 && datagram.target_port == 123);
    CHECK(datagram.size == 5 && !memcmp(datagram.data, "hello", 5));
    memset(bytes, 0xff, sizeof bytes);
    packet_datagram_head(bytes, &datagram);
    CHECK(bytes[26] == 0 && bytes[27] == 0 && bytes[DATAGRAM_HEAD] == 0xff);
    memcpy(bytes + DATAGRAM_HEAD, "world", 5);
    CHECK(packet_datagram(bytes, 33, &datagram) && datagram.size == 5 && datagram.target_port == 123);
}

static void no_datagram(void)
{
    struct datagram datagram;
    for (size_t size = 0; size < sizeof udp_sample; size++)
        CHECK(!packet_datagram(udp_sample, size, &datagram));
    CHECK(!takes_datagram_with(0, 0x65));
    CHECK(!takes_datagram_with(0, 0x44));
    CHECK(!takes_datagram_with(0, 0x4f));
    CHECK(!takes_datagram_with(9, 6)); /* TCP */
    CHECK(!takes_datagram_with(6, 0x20));
    CHECK(!takes_datagram_with(7, 1));
    CHECK(!takes_datagram_with(25, 14)); /* longer than its packet */
    CHECK(!takes_datagram_with(25, 7));
    CHECK(takes_datagram_with(25, 8)); /* shorter: what is behind it means nothing */
    CHECK(takes_datagram_with(26, 0));
}

int main(void)
{
    a_datagram();
    no_datagram();
    a_syn();
    no_syn();
    with_data();
    with_a_checksum();
    a_reset();
    unreachable();
    fprintf(stderr, "%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
