/* orders.c: reads the helper program's orders, and trusts none of them: each count and each end is checked. */
#include "darwin/system/system.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "helper.h"
#include "orders.h"

/* More than any system accepts for a program (ARG_MAX), plus a profile. */
enum { MOST_BYTES = 64 << 20 };

/* What is left of the text. */
struct rest {
    char *at;
    size_t size;
};

/* Returns the next string, or NULL if none ends. */
static char *next(struct rest *rest)
{
    char *text = rest->at, *end = rest->size ? memchr(text, 0, rest->size) : NULL;
    if (!end)
        return NULL;
    rest->size -= (size_t)(end + 1 - text);
    rest->at = end + 1;
    return text;
}

/* Returns a decimal number without a sign or leading zeros, at most `most`; or -1. */
static int64_t number(const char *text, size_t most)
{
    size_t n = 0;
    if (!text || !*text || (text[0] == '0' && text[1]))
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        n = 10 * n + (size_t)(*text - '0');
        if (n > most)
            return -1;
    }
    return (int64_t)n;
}

/* Reads a list of at least `least` strings: 0 or -errno. */
static int list(struct rest *rest, size_t least, char ***strings, size_t *n)
{
    int64_t count = number(next(rest), rest->size); /* a string has at least one byte */
    if (count < 0 || (size_t)count < least)
        return -EINVAL;
    char **items = calloc((size_t)count + 1, sizeof *items);
    if (!items)
        return -ENOMEM;
    for (int64_t i = 0; i < count; i++)
        if (!(items[i] = next(rest)))
            return -EINVAL;
    *strings = items;
    *n = (size_t)count;
    return 0;
}

int orders_parse(char *text, size_t size, struct orders *t)
{
    struct rest rest = {text, size};
    size_t n;
    const char *magic = next(&rest);
    if (!magic || strcmp(magic, HELPER_MAGIC) != 0)
        return -EINVAL;
    int ret = list(&rest, 1, &t->profile, &n);
    if (ret >= 0 && n % 2 == 0) /* a key without a value */
        ret = -EINVAL;
    if (ret >= 0)
        ret = list(&rest, 1, &t->programs, &n);
    if (ret >= 0)
        ret = list(&rest, 1, &t->argv, &n);
    if (ret >= 0)
        ret = list(&rest, 0, &t->envp, &n);
    return ret < 0 ? ret : rest.size ? -EINVAL : 0;
}

/* Reads by pread(2), since the offset is shared with the process that wrote the file. It doesn't use mmap(2): if a
 * mapped file is made shorter, that kills us. */
int orders_read(int fd, struct orders *t)
{
    size_t size = 0, room = 1 << 16;
    char *text = malloc(room);
    while (text && size <= MOST_BYTES) {
        ssize_t n = pread(fd, text + size, room - size, (off_t)size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return orders_parse(text, size, t);
        size += (size_t)n;
        if (size == room)
            text = realloc(text, room *= 2);
    }
    return text ? -E2BIG : -ENOMEM;
}
