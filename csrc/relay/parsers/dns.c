/* dns.c: one question in, one answer out. Whatever isn't a plain question about a host gets no data. */
#include "dns.h"
#include <string.h>

enum { HEAD = 12, QR = 0x80, OPCODE = 0x78, TC = 0x02, RD = 0x01, RA = 0x80, IN = 1 };
enum { SOA = 6, OPT = 41, EDE = 15, BLOCKED = 15, UDP_SIZE = 1232 };
enum { LABEL_MOST = 63, NAME_MOST = 255, REASON_MOST = 64 };

/* The question's name begins right behind the header: an answer points there, RFC 1035, 4.1.4. */
enum { POINTER = 0xc000 | HEAD };

static unsigned get16(const uint8_t *at)
{
    return (unsigned)(at[0] << 8 | at[1]);
}

static uint8_t *put16(uint8_t *at, unsigned value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
    return at + 2;
}

static uint8_t *put32(uint8_t *at, uint32_t value)
{
    return put16(put16(at, value >> 16), value & 0xffff);
}

static char lower(uint8_t c)
{
    return (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
}

static int is_of_host(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Read the name that begins at *at; its text goes to name. 0: it isn't complete. In a question there is nothing that
 * a pointer could refer to. */
static int read_name(const uint8_t *bytes, size_t size, size_t *at, char *name)
{
    size_t from = *at, n = 0;
    int is_plain = 1;
    while (from < size && bytes[from]) {
        size_t label = bytes[from++];
        if (label > LABEL_MOST || from + label >= size || n + label + 2 > NAME_MOST)
            return 0;
        for (size_t i = 0; i < label; i++) {
            name[n] = lower(bytes[from + i]);
            is_plain &= is_of_host(name[n++]);
        }
        name[n++] = '.';
        from += label;
    }
    name[is_plain && n ? n - 1 : 0] = 0;
    *at = from + 1;
    return from < size;
}

int dns_read(const uint8_t *bytes, size_t size, struct dns_question *question)
{
    *question = (struct dns_question){.end = HEAD};
    if (size < HEAD || size > DNS_MOST || bytes[2] & QR)
        return 0;
    if (bytes[2] & OPCODE) {
        question->code = DNS_NOTIMP;
        return 1;
    }
    size_t at = HEAD;
    question->code = DNS_FORMERR;
    /* One question, and none of the records that answers have. */
    if (bytes[2] & TC || get16(bytes + 4) != 1 || get16(bytes + 6) || get16(bytes + 8) || get16(bytes + 10) > 1)
        return 1;
    if (!read_name(bytes, size, &at, question->name) || at + 4 > size) {
        question->name[0] = 0;
        return 1;
    }
    /* The root's OPT record: a name of one byte, then its type. Anything else behind a question has no meaning. */
    question->has_edns = get16(bytes + 10) == 1 && at + 4 + 3 <= size && !bytes[at + 4] && get16(bytes + at + 5) == OPT;
    question->type = (uint16_t)get16(bytes + at);
    question->end = (uint16_t)(at + 4);
    question->code = get16(bytes + at + 2) == IN ? DNS_NOERROR : DNS_REFUSED;
    return 1;
}

static uint8_t *put_record(uint8_t *at, unsigned type, uint32_t ttl)
{
    return put32(put16(put16(put16(at, POINTER), type), IN), ttl);
}

/* Write a name as labels. The names here are ours: of letters, digits, hyphens and dots. */
static uint8_t *put_name(uint8_t *at, const char *name)
{
    while (*name) {
        size_t label = strcspn(name, ".");
        if (label > LABEL_MOST)
            label = LABEL_MOST;
        *at++ = (uint8_t)label;
        memcpy(at, name, label);
        at += label;
        name += label;
        name += *name == '.';
    }
    *at++ = 0;
    return at;
}

/* Write how long "no" holds (RFC 2308): not long, since a list may change. */
static uint8_t *put_soa(uint8_t *at)
{
    uint8_t *size = put_record(at, SOA, DNS_NEGATIVE_TTL);
    at = size + 2;
    *at++ = 0; /* primary server and mailbox: the root */
    *at++ = 0;
    at = put32(put32(put32(put32(put32(at, 1), 60), 60), 60), DNS_NEGATIVE_TTL);
    put16(size, (unsigned)(at - size - 2));
    return at;
}

static uint8_t *put_opt(uint8_t *at, const char *reason)
{
    size_t n = reason ? strlen(reason) : 0;
    if (n > REASON_MOST)
        n = REASON_MOST;
    *at++ = 0;
    at = put32(put16(put16(at, OPT), UDP_SIZE), 0);
    at = put16(at, n ? (unsigned)(6 + n) : 0);
    if (!n)
        return at;
    at = put16(put16(put16(at, EDE), (unsigned)(2 + n)), BLOCKED);
    memcpy(at, reason, n);
    return at + n;
}

static uint8_t *put_data(uint8_t *at, const struct dns_answer *answer)
{
    if (answer->address)
        return put32(put16(put_record(at, DNS_A, DNS_TTL), 4), answer->address);
    uint8_t *size = put_record(at, DNS_PTR, DNS_TTL);
    at = put_name(size + 2, answer->name);
    put16(size, (unsigned)(at - size - 2));
    return at;
}

size_t dns_write(uint8_t *to, const uint8_t *bytes, const struct dns_question *question,
                 const struct dns_answer *answer)
{
    uint8_t *at = to + question->end;
    int has_question = question->end > HEAD, has_data = answer->address || answer->name;
    memcpy(to, bytes, question->end);
    to[2] = (uint8_t)(QR | (bytes[2] & (OPCODE | RD)));
    to[3] = (uint8_t)(RA | answer->code);
    memset(to + 4, 0, HEAD - 4);
    to[5] = (uint8_t)has_question;
    if (has_data && has_question) {
        at = put_data(at, answer);
        to[7] = 1;
    } else if (has_question && (answer->code == DNS_NOERROR || answer->code == DNS_NXDOMAIN)) {
        at = put_soa(at);
        to[9] = 1;
    }
    if (question->has_edns) {
        at = put_opt(at, answer->reason);
        to[11] = 1;
    }
    return (size_t)(at - to);
}

int dns_reverse(const char *name, uint32_t *address)
{
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned part = 0, digits = 0;
        for (; *name >= '0' && *name <= '9' && digits < 3; digits++)
            part = part * 10 + (unsigned)(*name++ - '0');
        if (!digits || part > 255 || *name++ != '.')
            return 0;
        result |= part << (8 * i);
    }
    *address = result;
    return !strcmp(name, "in-addr.arpa");
}
