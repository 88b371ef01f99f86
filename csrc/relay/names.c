/* names.c: names that were asked for, each with an address of its own for as long as the relay lives.
 *
 * A connection so belongs to a name, and not to an address that many names share. No address is used again.
 */
#include "relay.h"
#include <stdlib.h>
#include <string.h>

enum { HASHES = 4096 };

static struct name *names[MOST_NAMES];
static int next[MOST_NAMES], first[HASHES]; /* by hash: numbers from 1; 0 is the end */
static int n_names;

static unsigned hash(const char *text)
{
    unsigned value = 5381;
    while (*text)
        value = value * 33 ^ (unsigned char)*text++;
    return value % HASHES;
}

struct name *name_by_text(const char *text)
{
    for (int i = first[hash(text)]; i; i = next[i - 1])
        if (!strcmp(names[i - 1]->text, text))
            return names[i - 1];
    return NULL;
}

struct name *name_by_address(uint32_t address)
{
    uint32_t number = address - INVENTED_FIRST;
    return number < (uint32_t)n_names ? names[number] : NULL;
}

struct name *name_add(const char *text)
{
    struct name *name = n_names < MOST_NAMES ? calloc(1, sizeof *name) : NULL;
    if (!name)
        return NULL;
    strncpy(name->text, text, sizeof name->text - 1);
    name->address = INVENTED_FIRST + (uint32_t)n_names;
    unsigned at = hash(text);
    next[n_names] = first[at];
    names[n_names++] = name;
    first[at] = n_names;
    return name;
}
