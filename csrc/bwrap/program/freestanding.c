/* freestanding.c: the functions that a compiler calls without being asked, to fill and to copy structures. Their bytes
 * are volatile, or the compiler would make each loop a call of the function itself. */
#include <stddef.h>

void *memset(void *to, int byte, size_t n)
{
    volatile unsigned char *at = to;
    for (; n; n--)
        *at++ = (unsigned char)byte;
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    volatile unsigned char *at = to;
    const unsigned char *next = from;
    for (; n; n--)
        *at++ = *next++;
    return to;
}
