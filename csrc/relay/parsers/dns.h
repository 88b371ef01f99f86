/* dns.h: questions and answers of the domain name system (RFC 1035, RFC 6891) as bytes. Pure: no system call. */
#ifndef NSBOX_RELAY_DNS_H
#define NSBOX_RELAY_DNS_H

#include <stddef.h>
#include <stdint.h>

enum { DNS_MOST = 512, DNS_NAME = 256 }; /* a question fits in 512 bytes, and so does each answer of ours */
enum { DNS_TTL = 60, DNS_NEGATIVE_TTL = 10 };

enum { DNS_A = 1, DNS_PTR = 12 };

enum dns_code { DNS_NOERROR = 0, DNS_FORMERR = 1, DNS_SERVFAIL = 2, DNS_NXDOMAIN = 3, DNS_NOTIMP = 4, DNS_REFUSED = 5 };

struct dns_question {
    char name[DNS_NAME]; /* in lower case, without the last dot; "" if it has a label that no host's name has */
    uint16_t type;
    uint16_t end;       /* where the question ends */
    enum dns_code code; /* the answer to a question that can't be answered */
    uint8_t has_edns;
};

struct dns_answer {
    enum dns_code code;
    uint32_t address;   /* 0: none; else the name's address */
    const char *name;   /* or NULL; else the address's name (PTR) */
    const char *reason; /* or NULL; else the text of the extended error, RFC 8914, code 15 ("blocked") */
};

/* Read a question. 0: it gets no answer. */
int dns_read(const uint8_t *bytes, size_t size, struct dns_question *question);

/* Write the answer to a question of these bytes; returns its size, at most DNS_MOST. */
size_t dns_write(uint8_t *to, const uint8_t *bytes, const struct dns_question *question,
                 const struct dns_answer *answer);

/* Finds the address in a name of in-addr.arpa; 0: it is no such name. */
int dns_reverse(const char *name, uint32_t *address);

#endif
