/* memory.c: memory for one command line, which is given back as a whole. */
#include "line.h"
#include "kernel/sys.h"
#include "kernel/sys_program.h"

enum { PIECE = 64 * 1024, ALIGNMENT = 16 };

struct memory {
    struct memory *next;
    uint64_t size, used;
};

void *memory_take(void **at, uint64_t n)
{
    struct memory *piece = *at;
    if (n > UINT64_MAX / 2)
        return NULL;
    n = (n + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
    if (!piece || piece->size - piece->used < n) {
        uint64_t head = (sizeof *piece + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
        uint64_t size = n + head < PIECE ? PIECE : n + head;
        struct memory *more = sys_map(size);
        if (!more)
            return NULL;
        more->next = piece;
        more->size = size;
        more->used = head;
        *at = piece = more;
    }
    uint8_t *found = (uint8_t *)piece + piece->used;
    piece->used += n;
    return found;
}

void memory_give_back(void **at)
{
    struct memory *piece = *at;
    *at = NULL;
    while (piece) {
        struct memory *next = piece->next;
        sys_unmap(piece, piece->size);
        piece = next;
    }
}

static void copy(uint8_t *to, const uint8_t *from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        to[i] = from[i];
}

void *list_add(void **at, struct list *list, uint64_t size)
{
    if (list->n + 1 >= list->room) {
        uint64_t room = list->room ? 2 * list->room : 16;
        void *items = memory_take(at, room * size);
        if (!items)
            return NULL;
        copy(items, list->items, list->n * size);
        list->items = items;
        list->room = room;
    }
    return (uint8_t *)list->items + list->n++ * size;
}
