/* test_dns.c: questions that are answered and those that aren't, and the answers, to the byte. */
#include "check.h"
#include "relay/parsers/dns.h"
#include <string.h>

static uint8_t bytes[DNS_MOST];
static size_t size;

/* A question for this name; edns: with an OPT record. */
static void ask(const char *name, unsigned type, int edns)
{
    static const uint8_t head[] = {0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0},
                         opt[] = {0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0};
    memcpy(bytes, head, sizeof head);
    bytes[11] = (uint8_t)edns;
    size = sizeof head;
    while (*name) {
        size_t label = strcspn(name, ".");
        bytes[size++] = (uint8_t)label;
        memcpy(bytes + size, name, label);
        size += label;
        name += label + (name[label] == '.');
    }
    const uint8_t rest[] = {0, 0, (uint8_t)type, 0, 1};
    memcpy(bytes + size, rest, sizeof rest);
    size += sizeof rest;
    if (edns) {
        memcpy(bytes + size, opt, sizeof opt);
        size += sizeof opt;
    }
}

static struct dns_question read_it(void)
{
    struct dns_question question;
    CHECK(dns_read(bytes, size, &question));
    return question;
}

static void a_question(void)
{
    ask("Api.Example.ORG", DNS_A, 1);
    struct dns_question question = read_it();
    CHECK(!strcmp(question.name, "api.example.org"));
    CHECK(question.type == DNS_A && question.code == DNS_NOERROR && question.has_edns && question.end == size - 11);
}

static void names(void)
{
    char longest[256] = {0};
    for (int i = 0; i < 253; i++)
        longest[i] = i % 50 == 49 ? '.' : 'a';
    ask(longest, DNS_A, 0);
    CHECK(!strcmp(read_it().name, longest));
    bytes[12] = 64; /* a label longer than RFC 1035 allows, or a pointer */
    CHECK(read_it().code == DNS_FORMERR);
    bytes[12] = 0xc0;
    CHECK(read_it().code == DNS_FORMERR);
    ask("a_b-c.9.example", DNS_A, 0);
    CHECK(!strcmp(read_it().name, "a_b-c.9.example"));
    static const char odd[] = {'\n', ' ', '.', '"', '\\', '\0', '\x7f', '\xe4', '*', '/'};
    for (size_t i = 0; i < sizeof odd; i++) {
        ask("abc.example", DNS_A, 0);
        bytes[14] = (uint8_t)odd[i];
        CHECK(!read_it().name[0]);
    }
}

static void no_question(void)
{
    ask("a.example", DNS_A, 0);
    struct dns_question question;
    for (size_t n = 0; n < 12; n++)
        CHECK(!dns_read(bytes, n, &question));
    for (size_t n = 12; n < size; n++)
        CHECK(dns_read(bytes, n, &question) && question.code == DNS_FORMERR && question.end == 12);
    bytes[2] = 0x81;
    CHECK(!dns_read(bytes, size, &question)); /* an answer: two programs that answer each other would never end */
}

static void other_questions(void)
{
    static const struct {
        int at;
        uint8_t value;
        enum dns_code code;
    } odd[] = {{2, 0x29, DNS_NOTIMP}, {2, 3, DNS_FORMERR}, {5, 0, DNS_FORMERR},  {5, 2, DNS_FORMERR},
               {7, 1, DNS_FORMERR},   {9, 1, DNS_FORMERR}, {11, 2, DNS_FORMERR}, {4, 1, DNS_FORMERR}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        ask("a.example", DNS_A, 0);
        bytes[odd[i].at] = odd[i].value;
        CHECK(read_it().code == odd[i].code);
    }
    ask("a.example", DNS_A, 0);
    bytes[size - 1] = 3; /* class CH */
    CHECK(read_it().code == DNS_REFUSED);
}

static void an_address(void)
{
    static const uint8_t record[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 1, 2};
    uint8_t to[DNS_MOST];
    ask("a.example", DNS_A, 0);
    struct dns_question question = read_it();
    size_t n = dns_write(to, bytes, &question, &(struct dns_answer){.address = 0xc6120102});
    CHECK(n == size + sizeof record && !memcmp(to + size, record, sizeof record));
    CHECK(to[0] == 0xab && to[1] == 0xcd && to[2] == 0x81 && to[3] == 0x80);
    CHECK(to[5] == 1 && to[7] == 1 && to[9] == 0 && to[11] == 0 && !memcmp(to + 12, bytes + 12, size - 12));
}

static void no_address(void)
{
    uint8_t to[DNS_MOST];
    ask("evil.example", DNS_A, 1);
    struct dns_question question = read_it();
    size_t n = dns_write(to, bytes, &question, &(struct dns_answer){.code = DNS_NXDOMAIN, .reason = "not listed"});
    CHECK(to[3] == 0x83 && to[7] == 0 && to[9] == 1 && to[11] == 1);
    CHECK(to[question.end + 3] == 6 && to[question.end + 11] == 22); /* SOA */
    const uint8_t *opt = to + question.end + 34;
    static const uint8_t begin[] = {0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 16, 0, 15, 0, 12, 0, 15};
    CHECK(!memcmp(opt, begin, sizeof begin) && !memcmp(opt + sizeof begin, "not listed", 10));
    CHECK(n == (size_t)(opt - to) + sizeof begin + 10);
    n = dns_write(to, bytes, &question, &(struct dns_answer){.code = DNS_SERVFAIL});
    CHECK(n == (size_t)question.end + 11u && to[9] == 0);
}

static void without_a_question(void)
{
    uint8_t to[DNS_MOST];
    ask("a.example", DNS_A, 0);
    bytes[2] = 0x29;
    struct dns_question question = read_it();
    CHECK(dns_write(to, bytes, &question, &(struct dns_answer){.code = question.code}) == 12);
    CHECK(to[2] == (0x80 | 0x29) && to[3] == 0x84 && to[5] == 0 && to[9] == 0);
}

static void a_name(void)
{
    static const uint8_t record[] = {0xc0, 12,  0, 12,  0,   1,   0,   0,   0,   60,  0, 11,
                                     1,    'a', 7, 'e', 'x', 'a', 'm', 'p', 'l', 'e', 0};
    uint8_t to[DNS_MOST];
    uint32_t address = 0;
    ask("2.1.18.198.in-addr.arpa", DNS_PTR, 0);
    struct dns_question question = read_it();
    CHECK(dns_reverse(question.name, &address) && address == 0xc6120102);
    size_t n = dns_write(to, bytes, &question, &(struct dns_answer){.name = "a.example"});
    CHECK(n == size + sizeof record && !memcmp(to + size, record, sizeof record));
    static const char *const odd[] = {
        "",          "1.2.3.in-addr.arpa",     "1.2.3.256.in-addr.arpa", "1.2.3.4.in-addr.arpa.x",
        "a.example", "1.2.3.4.5.in-addr.arpa", "1..3.4.in-addr.arpa",    "1.2.3.4.ip6.arpa"};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        CHECK(!dns_reverse(odd[i], &address));
}

int main(void)
{
    a_question();
    names();
    no_question();
    other_questions();
    an_address();
    no_address();
    without_a_question();
    a_name();
    fprintf(stderr, "%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
