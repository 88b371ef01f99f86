/* fuzz_relay.c: what the relay reads from a sandbox: packets, questions, hellos; and the caller's list.
 * For libFuzzer, or with fuzz_main.c. The first byte of an input says which of them it is.
 */
#include "relay/parsers/dns.h"
#include "net/hello.h"
#include "relay/parsers/packet.h"
#include "net/rules.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

static void a_packet(const uint8_t *bytes, size_t size)
{
    struct syn syn;
    struct datagram datagram;
    uint8_t to[64];
    if (packet_datagram(bytes, size, &datagram)) {
        must(datagram.data >= bytes && datagram.data + datagram.size <= bytes + size);
        must(packet_unreachable_udp(to, &datagram, ICMP_PORT) == 56);
    }
    if (!packet_syn(bytes, size, &syn))
        return;
    must(syn.size >= 40 && syn.size <= PACKET_MOST && syn.size + syn.data == size);
    must(packet_reset(to, &syn) == 40 && packet_unreachable(to, &syn, ICMP_HOST) == 56);
    packet_seal(&syn);
}

static void a_question(const uint8_t *bytes, size_t size)
{
    struct dns_question question;
    uint8_t to[DNS_MOST];
    uint32_t address = 0;
    if (!dns_read(bytes, size, &question))
        return;
    must(question.end <= size && strlen(question.name) < 254);
    const struct dns_answer answers[] = {{.code = question.code},
                                         {.code = DNS_NXDOMAIN, .reason = "not in this sandbox's network list"},
                                         {.address = 0xc6120100},
                                         {.name = dns_reverse(question.name, &address) ? "a.example" : NULL}};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        size_t n = dns_write(to, bytes, &question, &answers[i]);
        must(n >= question.end && n <= DNS_MOST && to[2] & 0x80);
        struct dns_question again;
        to[2] = (uint8_t)(to[2] & 0x7f);
        must(dns_read(to, n, &again)); /* the question is still in it */
    }
}

/* The result for a part is the result for the whole: a client can't show one name and send another. */
static void a_hello(const uint8_t *bytes, size_t size)
{
    char part[HELLO_NAME], whole[HELLO_NAME];
    size_t used = 0, of_part = 0;
    enum hello last = hello_read(bytes, size, whole, &used);
    must(used <= size);
    for (size_t n = size > 64 ? size - 64 : 0; n < size; n++) {
        enum hello found = hello_read(bytes, n, part, &of_part);
        must(found == HELLO_MORE ||
             (found == last && (found != HELLO_NAMED || (!strcmp(part, whole) && of_part == used))));
    }
}

static void a_list(const uint8_t *bytes, size_t size)
{
    struct rules rules;
    nsbox_net_rules head = {.magic = NSBOX_NET_MAGIC, .version = NSBOX_NET_VERSION, .size = (uint32_t)size};
    if (size < sizeof head)
        return;
    uint8_t *blob = malloc(size);
    must(blob != NULL);
    memcpy(blob, bytes, size);
    memcpy(blob, &head, 12);
    if (rules_read(&rules, blob, size) == 0) {
        rules_name(&rules, "a.example");
        rules_spells(&rules, "a.example");
        rules_name_port(&rules, "a.example", 443, PROTOCOL_TCP);
        rules_address(&rules, 0x0a000001, 443, PROTOCOL_TCP, 0);
        rules_may_resolve(&rules, bytes, 16, 443, PROTOCOL_TCP, 0);
    }
    free(blob);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    /* A copy of exactly this size, so that a byte read too far is noticed. */
    uint8_t *copy = malloc(size - 1 ? size - 1 : 1);
    must(copy != NULL);
    memcpy(copy, data + 1, size - 1);
    void (*const targets[])(const uint8_t *, size_t) = {a_packet, a_question, a_hello, a_list};
    targets[data[0] % 4](copy, size - 1);
    free(copy);
    return 0;
}
