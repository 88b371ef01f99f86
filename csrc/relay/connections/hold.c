/* hold.c: holds the first bytes of a client until they say which server it wants: two names may share an address.
 *
 * At port 443 only TLS passes. At other ports a client may speak something else, or wait for the server to begin. A
 * server may want a second hello (RFC 8446, 4.1.4), which could name another server, so that is held too. Until it
 * is clear whether it wants one, a client may send early data, alerts and changes of cipher, and no other records.
 */
#include "connection.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    HTTPS = 443,
    HANDSHAKE = 22,
    CHANGE_CIPHER = 20,
    ALERT = 21,
    DATA = 23,
    LAST_RECORD = 24,
    SERVER_HELLO = 2,
    MOST_PART = 16640
};

/* The random that makes a ServerHello a HelloRetryRequest: RFC 8446, 4.1.3. */
static const uint8_t RETRY[32] = {0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c,
                                  0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb,
                                  0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c};

static uint32_t reason_of(const struct connection *c, enum hello kind)
{
    if (kind == HELLO_NO_TLS)
        return NSBOX_NET_NO_TLS;
    if (kind == HELLO_ECH && list.head->tls != NSBOX_NET_TLS_ECH)
        return NSBOX_NET_ECH;
    if ((kind == HELLO_NAMED || kind == HELLO_ECH) && !strcmp(c->sni, c->name->text))
        return 0;
    return NSBOX_NET_SNI;
}

static int abort_handshake(struct connection *c, uint32_t reason)
{
    uint8_t alert[8];
    if (reason == NSBOX_NET_NO_TLS) {
        connection_reset(c, reason, 0);
        return -ECANCELED;
    }
    size_t size = hello_alert(alert);
    tell_close(c, reason, 0); /* reported first: a caller that sees the client's end has it */
    send(c->client.source.fd, alert, size, MSG_NOSIGNAL); /* if it doesn't arrive, the end follows anyway */
    connection_end(c);
    return -ECANCELED;
}

/* Does the client clearly speak something other than TLS? */
static int is_other(const struct connection *c, uint8_t first)
{
    return c->syn.target_port != HTTPS && (first < CHANGE_CIPHER || first > LAST_RECORD);
}

/* Hold up to the size of a hello. Returns how many of the bytes are consumed, or -errno. */
static ssize_t hold_hello(struct connection *c, const uint8_t *bytes, size_t size, int *is_right)
{
    size_t used, before = c->hello_size;
    if (!c->hello)
        c->hello = malloc(HELLO_MOST);
    if (!c->hello)
        return -ENOMEM;
    size_t room = HELLO_MOST - before, part = size < room ? size : room;
    memcpy(c->hello + before, bytes, part);
    c->hello_size += part;
    enum hello kind = hello_read(c->hello, c->hello_size, c->sni, &used);
    if (kind == HELLO_MORE && part == size)
        return (ssize_t)part;
    uint32_t reason = reason_of(c, kind);
    if (reason)
        return abort_handshake(c, reason);
    *is_right = 1;
    c->hello_size = used;
    return (ssize_t)(used - before); /* the hello wasn't complete before */
}

static int pass_hello(struct connection *c)
{
    uint8_t *hello = c->hello;
    size_t size = c->hello_size;
    c->hello = NULL;
    c->hello_size = 0;
    int ret = pump_send(&c->client, hello, size);
    free(hello);
    return ret;
}

/* Pass on one record, or as much of it as has come, and look only at the head of the next. Returns how much, or
 * -errno. */
static ssize_t pass_record(struct connection *c, const uint8_t *bytes, size_t size)
{
    size_t part = c->record_left < size ? c->record_left : size;
    if (!part) {
        part = sizeof c->record - c->record_size < size ? sizeof c->record - c->record_size : size;
        memcpy(c->record + c->record_size, bytes, part);
        c->record_size += part;
        if (c->record[0] != CHANGE_CIPHER && c->record[0] != ALERT && c->record[0] != DATA)
            return abort_handshake(c, NSBOX_NET_SNI);
        if (c->record_size == sizeof c->record) {
            c->record_left = (size_t)(c->record[3] << 8 | c->record[4]);
            c->record_size = 0;
            if (c->record_left > MOST_PART)
                return abort_handshake(c, NSBOX_NET_SNI);
        }
    } else {
        c->record_left -= part;
    }
    int ret = pump_send(&c->client, bytes, part);
    return ret ? ret : (ssize_t)part;
}

/* Handle bytes that came. Returns how many of them are consumed, or -errno. */
static ssize_t step(struct connection *c, const uint8_t *bytes, size_t size)
{
    int is_first = c->watch == WATCH_HELLO, is_between = !c->record_left && !c->record_size;
    if (is_first && !c->hello && is_other(c, bytes[0]))
        c->watch = WATCH_OVER;
    if (c->watch == WATCH_OVER) {
        int ret = pump_send(&c->client, bytes, size);
        return ret ? ret : (ssize_t)size;
    }
    if (!is_first && !(c->watch == WATCH_SECOND && is_between && (c->hello || bytes[0] == HANDSHAKE)))
        return pass_record(c, bytes, size);
    int is_right = 0;
    ssize_t n = hold_hello(c, bytes, size, &is_right);
    if (n < 0 || !is_right)
        return n;
    c->watch = is_first ? WATCH_ANSWER : WATCH_OVER;
    int ret = pass_hello(c);
    return ret ? ret : n;
}

int hold(struct connection *c, const uint8_t *bytes, size_t size)
{
    while (size) {
        ssize_t n = step(c, bytes, size);
        if (n < 0)
            return (int)n;
        bytes += n;
        size -= (size_t)n;
    }
    return 0;
}

void hold_answer(struct connection *c, const uint8_t *bytes, size_t size)
{
    if (c->watch != WATCH_ANSWER)
        return;
    size_t room = ANSWER_HEAD - c->answer_size, part = size < room ? size : room;
    memcpy(c->answer + c->answer_size, bytes, part);
    c->answer_size += part;
    int is_hello = c->answer[0] == HANDSHAKE && (c->answer_size < 6 || c->answer[5] == SERVER_HELLO);
    if (c->answer_size == ANSWER_HEAD || !is_hello)
        c->watch = is_hello && !memcmp(c->answer + ANSWER_HEAD - sizeof RETRY, RETRY, sizeof RETRY) ? WATCH_SECOND
                                                                                                    : WATCH_OVER;
}

/* Does the client still owe us a hello? */
static int owes_hello(const struct connection *c)
{
    return c->hello || (c->watch == WATCH_HELLO && c->syn.target_port == HTTPS);
}

int hold_end(struct connection *c)
{
    if (owes_hello(c))
        return 1;
    c->watch = WATCH_OVER;
    return 0;
}

int is_hold_over(struct connection *c)
{
    return owes_hello(c);
}
