/* hold.c: the first bytes of a client are held until they say which server it wants: two names may share an address.
 *
 * At port 443 nothing but TLS passes. At others a client may speak something else, or wait for the server to begin.
 */
#include "connection.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { HTTPS = 443, TLS_RECORD = 22 };

static uint32_t reason_of(const struct connection *c, enum hello found)
{
    if (found == HELLO_NO_TLS)
        return NSBOX_NET_NO_TLS;
    if (found == HELLO_ECH && list.head->tls != NSBOX_NET_TLS_ECH)
        return NSBOX_NET_ECH;
    if ((found == HELLO_NAMED || found == HELLO_ECH) && !strcmp(c->sni, c->name->text))
        return 0;
    return NSBOX_NET_SNI;
}

static int turn_away(struct connection *c, uint32_t reason)
{
    uint8_t alert[8];
    if (reason == NSBOX_NET_NO_TLS) {
        connection_reset(c, reason, 0);
        return -ECANCELED;
    }
    size_t size = hello_alert(alert);
    send(c->client.source.fd, alert, size, MSG_NOSIGNAL); /* one that doesn't arrive is followed by the end */
    connection_close(c, reason, 0);
    return -ECANCELED;
}

static int release(struct connection *c, const uint8_t *bytes, size_t size)
{
    c->is_held = 0;
    int ret = pump_send(&c->client, bytes, size);
    free(c->hello);
    c->hello = NULL;
    return ret;
}

int hold(struct connection *c, const uint8_t *bytes, size_t size)
{
    if (!c->hello && c->syn.target_port != HTTPS && bytes[0] != TLS_RECORD)
        return release(c, bytes, size);
    if (!c->hello)
        c->hello = malloc(HELLO_MOST);
    if (!c->hello)
        return -ENOMEM;
    size_t room = HELLO_MOST - c->hello_size, part = size < room ? size : room;
    memcpy(c->hello + c->hello_size, bytes, part);
    c->hello_size += part;
    enum hello found = hello_read(c->hello, c->hello_size, c->sni);
    if (found == HELLO_MORE && part == size)
        return 0;
    uint32_t reason = reason_of(c, found);
    if (reason)
        return turn_away(c, reason);
    int ret = release(c, c->hello, c->hello_size);
    return ret || part == size ? ret : pump_send(&c->client, bytes + part, size - part);
}
