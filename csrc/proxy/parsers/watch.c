/* watch.c: keeps a TLS client's bytes in its buffer until they are known to name the right server.
 *
 * At port 443 only TLS passes. At other ports a client may speak something else, or wait for the server to begin.
 * Until it is clear whether the server wants a second hello, a client may send early data, alerts and changes of
 * cipher, and no other records.
 */
#include "watch.h"
#include <string.h>

enum { HTTPS = 443, CHANGE_CIPHER = 20, ALERT = 21, HANDSHAKE = 22, DATA = 23, LAST = 24 };
enum { SERVER_HELLO = 2, RECORD_HEAD = 5, MOST_PART = 16640 };

/* The random that makes a ServerHello a HelloRetryRequest: RFC 8446, 4.1.3. */
static const uint8_t RETRY[32] = {0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c,
                                  0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb,
                                  0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c};

static uint32_t reason_of(const struct watch *watch, const char *name, enum hello found)
{
    if (found == HELLO_NO_TLS)
        return NSBOX_NET_NO_TLS;
    if (found == HELLO_ECH && watch->tls != NSBOX_NET_TLS_ECH)
        return NSBOX_NET_ECH;
    return (found == HELLO_NAMED || found == HELLO_ECH) && !strcmp(watch->sni, name) ? 0 : NSBOX_NET_SNI;
}

static size_t pass_hello(struct watch *watch, const char *name, const uint8_t *bytes, size_t size, uint32_t *reason)
{
    size_t used = 0;
    enum hello found = hello_read(bytes, size, watch->sni, &used);
    if (found == HELLO_MORE)
        return 0;
    *reason = reason_of(watch, name, found);
    if (*reason)
        return 0;
    watch->state = watch->state == WATCH_HELLO ? WATCH_ANSWER : WATCH_OVER;
    return used;
}

static size_t pass_record(struct watch *watch, const uint8_t *bytes, size_t size, uint32_t *reason)
{
    size_t part = watch->record_left < size ? watch->record_left : size;
    if (!part && bytes[0] != CHANGE_CIPHER && bytes[0] != ALERT && bytes[0] != DATA)
        *reason = NSBOX_NET_SNI;
    else if (!part && size >= RECORD_HEAD) {
        watch->record_left = (size_t)(bytes[3] << 8 | bytes[4]);
        *reason = watch->record_left > MOST_PART ? NSBOX_NET_SNI : 0;
        return *reason ? 0 : RECORD_HEAD;
    }
    watch->record_left -= part;
    return part;
}

/* Does one step; 0: it needs more bytes. */
static size_t step(struct watch *watch, const char *name, const uint8_t *bytes, size_t size, uint32_t *reason)
{
    int is_first = watch->state == WATCH_HELLO;
    if (is_first && watch->port != HTTPS && (bytes[0] < CHANGE_CIPHER || bytes[0] > LAST))
        watch->state = WATCH_OVER;
    if (watch->state == WATCH_OVER)
        return size;
    if (is_first || (watch->state == WATCH_SECOND && !watch->record_left && bytes[0] == HANDSHAKE))
        return pass_hello(watch, name, bytes, size, reason);
    return pass_record(watch, bytes, size, reason);
}

size_t watch_client(struct watch *watch, const char *name, const uint8_t *bytes, size_t size, uint32_t *reason)
{
    size_t all = 0, part = 1;
    *reason = 0;
    while (all < size && part && !*reason) {
        part = step(watch, name, bytes + all, size - all, reason);
        all += part;
    }
    return all;
}

void watch_server(struct watch *watch, const uint8_t *bytes, size_t size)
{
    if (watch->state != WATCH_ANSWER)
        return;
    size_t room = sizeof watch->answer - watch->answer_size, part = size < room ? size : room;
    memcpy(watch->answer + watch->answer_size, bytes, part);
    watch->answer_size += part;
    const uint8_t *answer = watch->answer;
    int is_hello = answer[0] == HANDSHAKE && (watch->answer_size < 6 || answer[5] == SERVER_HELLO);
    if (watch->answer_size == sizeof watch->answer || !is_hello)
        watch->state = is_hello && !memcmp(answer + sizeof watch->answer - sizeof RETRY, RETRY, sizeof RETRY)
                           ? WATCH_SECOND
                           : WATCH_OVER;
}

int watch_waits(const struct watch *watch, size_t held)
{
    return watch->state == WATCH_HELLO ? held || watch->port == HTTPS : watch->state == WATCH_SECOND && held;
}
