/* target.c: hosts and ports as text. Whatever can be read in two ways is refused: the connection could follow the
 * other reading. */
#include "target.h"
#include <errno.h>
#include <string.h>

enum { NAME_MOST = 253, LABEL_MOST = 63, LOOPBACK = 0x7f000001 };

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

void target_four(struct destination *to, const uint8_t bytes[4])
{
    to->address = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    to->kind = to->address == LOOPBACK ? TO_LOCALHOST : TO_ADDRESS;
}

/* Read four numbers. None may begin with a zero: some readers would read it as octal. */
static int read_four(const char *text, size_t size, uint8_t bytes[4])
{
    size_t at = 0;
    for (int i = 0; i < 4; i++) {
        unsigned value = 0;
        size_t first = at;
        while (at < size && is_digit(text[at]) && at - first < 4)
            value = value * 10 + (unsigned)(text[at++] - '0');
        if (at == first || value > 255 || (at - first > 1 && text[first] == '0'))
            return 0;
        bytes[i] = (uint8_t)value;
        if (i < 3 && (at == size || text[at++] != '.'))
            return 0;
    }
    return at == size;
}

/* getaddrinfo(3) reads a name as a number if its last label is one, in any base. */
static int ends_in_number(const char *name)
{
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    if (last[0] == '0' && last[1] == 'x')
        return 1;
    while (is_digit(*last))
        last++;
    return !*last;
}

static int read_name(struct destination *to, const char *text, size_t size)
{
    size_t label = 0;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c >= 'A' && c <= 'Z')
            c = (char)(c + 32);
        int is_letter = (c >= 'a' && c <= 'z') || is_digit(c) || c == '-' || c == '_';
        if (c == '.' ? !label : !is_letter)
            return -EINVAL;
        label = c == '.' ? 0 : label + 1;
        if (label > LABEL_MOST)
            return -EINVAL;
        to->name[i] = c;
    }
    to->name[size] = 0;
    to->kind = TO_NAME;
    return !label || ends_in_number(to->name) ? -EINVAL : 0;
}

int target_host(struct destination *to, const char *text, size_t size)
{
    uint8_t bytes[4];
    to->name[0] = 0;
    to->address = 0;
    if (size > 2 && text[0] == '[' && text[size - 1] == ']') {
        to->kind = TO_OTHER;
        return strspn(text + 1, "0123456789abcdefABCDEF:.%") >= size - 2 ? 0 : -EINVAL;
    }
    if (read_four(text, size, bytes)) {
        target_four(to, bytes);
        return 0;
    }
    if (size && text[size - 1] == '.')
        size--;
    if (!size || size > NAME_MOST)
        return -EINVAL;
    int ret = read_name(to, text, size);
    if (ret == 0 && !strcmp(to->name, "localhost"))
        to->kind = TO_LOCALHOST;
    return ret;
}

static int read_port(const char *text, size_t size, uint16_t *port)
{
    unsigned value = 0;
    if (!size || size > 5)
        return -EINVAL;
    for (size_t i = 0; i < size; i++) {
        if (!is_digit(text[i]))
            return -EINVAL;
        value = value * 10 + (unsigned)(text[i] - '0');
    }
    *port = (uint16_t)value;
    return value >= 1 && value <= 65535 ? 0 : -EINVAL;
}

int target_authority(struct destination *to, const char *text, size_t size, uint16_t no_port)
{
    size_t host = size;
    while (host && text[host - 1] != ':' && text[host - 1] != ']')
        host--;
    if (!host || text[host - 1] == ']') { /* no colon, or only one in brackets */
        to->port = no_port;
        host = size;
    } else {
        if (read_port(text + host, size - host, &to->port) < 0)
            return -EINVAL;
        host--;
    }
    return !to->port ? -EINVAL : target_host(to, text, host);
}

int target_is_same(const struct destination *a, const struct destination *b)
{
    return a->kind == b->kind && a->port == b->port && a->address == b->address &&
           (a->kind != TO_NAME || !strcmp(a->name, b->name));
}
