/* hello.c: the first message of a TLS client. It joins the records, and refuses whatever the standard doesn't
 * define. */
#include "hello.h"
#include <string.h>

enum { HANDSHAKE = 22, CLIENT_HELLO = 1, RECORD_HEAD = 5, MESSAGE_HEAD = 4, RECORD_MOST = 16384 };
enum { SERVER_NAME = 0, HOST_NAME = 0, ENCRYPTED = 0xfe0d, RANDOM = 32, NAME_MOST = 253 };

/* What is left to read. Reading more than that sets is_short, and returns zeros. */
struct reader {
    const uint8_t *at;
    size_t left;
    int is_short;
};

static struct reader take(struct reader *from, size_t size)
{
    struct reader part = {from->at, size, 0};
    if (size > from->left) {
        from->is_short = 1;
        part.left = 0;
        return part;
    }
    from->at += size;
    from->left -= size;
    return part;
}

static size_t number(struct reader *from, size_t bytes)
{
    struct reader part = take(from, bytes);
    size_t value = 0;
    for (size_t i = 0; i < part.left; i++)
        value = value << 8 | part.at[i];
    return value;
}

/* Reads a field that is preceded by its length, which has this many bytes. */
static struct reader vector(struct reader *from, size_t bytes)
{
    return take(from, number(from, bytes));
}

static int read_host(struct reader host, char name[HELLO_NAME])
{
    if (!host.left || host.left > NAME_MOST)
        return 0;
    for (size_t i = 0; i < host.left; i++) {
        char c = (char)host.at[i];
        if (c >= 'A' && c <= 'Z')
            c = (char)(c + 32);
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.'))
            return 0;
        name[i] = c;
    }
    name[host.left] = 0;
    return 1;
}

/* Reads the extension, which must hold one name of a host and nothing else. */
static int read_server_name(struct reader extension, char name[HELLO_NAME])
{
    struct reader list = vector(&extension, 2);
    size_t type = number(&list, 1);
    struct reader host = vector(&list, 2);
    return !extension.is_short && !list.is_short && !extension.left && !list.left && type == HOST_NAME &&
           read_host(host, name);
}

static enum hello read_extensions(struct reader all, char name[HELLO_NAME])
{
    int named = 0, hidden = 0;
    while (all.left) {
        size_t type = number(&all, 2);
        struct reader one = vector(&all, 2);
        if (all.is_short || (type == SERVER_NAME && (named++ || !read_server_name(one, name))))
            return HELLO_BAD;
        hidden |= type == ENCRYPTED;
    }
    return hidden ? HELLO_ECH : named ? HELLO_NAMED : HELLO_NAMELESS;
}

static enum hello read_message(struct reader body, char name[HELLO_NAME])
{
    take(&body, 2 + RANDOM);
    vector(&body, 1); /* session */
    vector(&body, 2); /* ciphers */
    vector(&body, 1); /* compression */
    if (body.is_short)
        return HELLO_BAD;
    if (!body.left)
        return HELLO_NAMELESS;
    struct reader extensions = vector(&body, 2);
    return body.is_short || body.left ? HELLO_BAD : read_extensions(extensions, name);
}

static size_t length_of(const uint8_t *message)
{
    return MESSAGE_HEAD + ((size_t)message[1] << 16 | (size_t)message[2] << 8 | message[3]);
}

/* The message that the records hold. */
struct joined {
    uint8_t message[HELLO_MOST];
    size_t size, used; /* used: bytes of records, up to the message's end */
    int is_whole, is_bad;
};

/* Join the message. Its records must hold nothing else; what follows it isn't read here. */
static void join(struct reader records, struct joined *to)
{
    const size_t all = records.left;
    while (records.left >= RECORD_HEAD && !to->is_whole) {
        size_t type = number(&records, 1), major = number(&records, 1);
        number(&records, 1);
        size_t length = number(&records, 2), there = length < records.left ? length : records.left;
        to->is_bad =
            type != HANDSHAKE || major != 3 || !length || length > RECORD_MOST || to->size + there > HELLO_MOST;
        if (to->is_bad)
            return;
        memcpy(to->message + to->size, take(&records, there).at, there);
        to->size += there;
        to->is_whole = to->size >= MESSAGE_HEAD && to->size >= length_of(to->message);
        to->is_bad = to->is_whole && (to->size != length_of(to->message) || there != length);
    }
    to->used = all - records.left;
}

enum hello hello_read(const uint8_t *bytes, size_t size, char name[HELLO_NAME], size_t *used)
{
    static struct joined it; /* not on the stack, for its size */
    it.size = it.used = 0;
    it.is_whole = it.is_bad = 0;
    name[0] = 0;
    if (size && bytes[0] != HANDSHAKE)
        return HELLO_NO_TLS;
    join((struct reader){bytes, size, 0}, &it);
    *used = it.used;
    if (it.is_bad || (it.size && it.message[0] != CLIENT_HELLO))
        return HELLO_BAD;
    if (it.size >= MESSAGE_HEAD && length_of(it.message) > HELLO_MOST)
        return HELLO_BAD;
    if (!it.is_whole)
        return size < HELLO_MOST ? HELLO_MORE : HELLO_BAD;
    return read_message((struct reader){it.message + MESSAGE_HEAD, it.size - MESSAGE_HEAD, 0}, name);
}

size_t hello_alert(uint8_t *to)
{
    static const uint8_t alert[] = {21, 3, 1, 0, 2, 2, 112};
    memcpy(to, alert, sizeof alert);
    return sizeof alert;
}
