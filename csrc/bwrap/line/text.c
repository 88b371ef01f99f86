/* text.c: texts and numbers. */
#include "line.h"

uint64_t text_length(const char *text)
{
    uint64_t n = 0;
    while (text[n])
        n++;
    return n;
}

bool text_is(const char *one, const char *other)
{
    while (*one && *one == *other) {
        one++;
        other++;
    }
    return *one == *other;
}

const char *text_after(const char *text, const char *begin)
{
    while (*begin) {
        if (*text != *begin)
            return NULL;
        text++;
        begin++;
    }
    return text;
}

char *text_join(void **at, const char *const *parts)
{
    uint64_t n = 1;
    for (const char *const *part = parts; *part; part++)
        n += text_length(*part);
    char *text = memory_take(at, n), *end = text;
    if (!text)
        return NULL;
    for (; *parts; parts++)
        for (const char *from = *parts; *from; from++)
            *end++ = *from;
    return text;
}

const char *digits_of(struct digits *d, int64_t number)
{
    char *at = d->text + sizeof d->text - 1;
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    *at = 0;
    do {
        *--at = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    if (number < 0)
        *--at = '-';
    return at;
}

static bool is_space(char ch)
{
    return ch == ' ' || (ch >= '\t' && ch <= '\r');
}

static unsigned digit_of(char ch)
{
    if (ch >= '0' && ch <= '9')
        return (unsigned)(ch - '0');
    if (ch >= 'a' && ch <= 'f')
        return (unsigned)(ch - 'a') + 10;
    return ch >= 'A' && ch <= 'F' ? (unsigned)(ch - 'A') + 10 : 16;
}

/* base 0: as in C. */
struct number number_of(const char *text, unsigned base)
{
    struct number found = {0};
    while (is_space(*text))
        text++;
    bool minus = *text == '-';
    if (*text == '-' || *text == '+')
        text++;
    if (base == 0) {
        base = *text == '0' ? 8 : 10;
        if (*text == '0' && (text[1] == 'x' || text[1] == 'X')) {
            base = 16;
            text += 2;
        }
    }
    if (!*text)
        return found;
    for (; *text; text++) {
        unsigned digit = digit_of(*text);
        if (digit >= base)
            return found;
        if (found.amount > (UINT64_MAX - digit) / base)
            found.is_huge = true;
        else
            found.amount = found.amount * base + digit;
    }
    found.is_one = true;
    found.is_negative = minus && (found.amount || found.is_huge);
    return found;
}
