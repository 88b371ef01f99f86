/* freestanding.c: the functions that a compiler calls without being asked, to fill and to copy structures. */
#include <stddef.h>

void *memset(void *to, int byte, size_t n)
{
    unsigned char *at = to;
    for (; n; n--) {
        *at++ = (unsigned char)byte;
        __asm__ volatile("" ::: "memory"); /* or the compiler makes this loop a call of itself */
    }
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    unsigned char *at = to;
    const unsigned char *next = from;
    for (; n; n--) {
        *at++ = *next++;
        __asm__ volatile("" ::: "memory");
    }
    return to;
}
