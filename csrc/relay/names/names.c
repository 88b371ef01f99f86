/* names.c: names that were asked for, each with an address of its own.
 *
 * So a connection belongs to a name, and not to an address that many names share. An address that a sandbox was
 * given stays the name's for as long as that sandbox lives, and longer while there are others. A name that leads
 * nowhere needs no address, and is forgotten soon.
 */
#include "relay/base/relay.h"
#include <stdlib.h>
#include <string.h>

enum { HASHES = 4096 };

static struct name *names[MOST_NAMES];
static int next[MOST_NAMES], first[HASHES]; /* by hash: numbers from 1; 0 is the end */
static int n_names, first_free;             /* free ones are a chain of next, too */
static struct name *unknown_names;          /* names whose addresses no sandbox was given */

static unsigned hash(const char *text)
{
    unsigned value = 5381;
    while (*text)
        value = value * 33 ^ (unsigned char)*text++;
    return value % HASHES;
}

static uint32_t number_of(const struct name *name)
{
    return name->address - INVENTED_FIRST;
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
    struct name *name = number < (uint32_t)n_names ? names[number] : NULL;
    return name && name->is_told ? name : NULL;
}

static void sweep(void);

/* Returns a free number from 1 up, or 0. */
static int take_number(void)
{
    if (!first_free && n_names < MOST_NAMES)
        return ++n_names;
    if (!first_free)
        sweep();
    int number = first_free;
    if (number)
        first_free = next[number - 1];
    return number;
}

struct name *name_add(const char *text)
{
    struct name *name = calloc(1, sizeof *name);
    int number = name ? take_number() : 0;
    if (!number) {
        free(name);
        return NULL;
    }
    strncpy(name->text, text, sizeof name->text - 1);
    name->address = INVENTED_FIRST + (uint32_t)number - 1;
    unsigned at = hash(text);
    next[number - 1] = first[at];
    names[number - 1] = name;
    first[at] = number;
    name->next_unknown = unknown_names;
    unknown_names = name;
    return name;
}

static void forget(struct name *name)
{
    int number = (int)number_of(name) + 1, *link = &first[hash(name->text)];
    while (*link != number)
        link = &next[*link - 1];
    *link = next[number - 1];
    names[number - 1] = NULL;
    next[number - 1] = first_free;
    first_free = number;
    free(name);
}

void names_tick(int64_t time)
{
    for (struct name **link = &unknown_names; *link;) {
        struct name *name = *link;
        if (!name->is_told && (name->is_busy || name->fresh_until > time)) {
            link = &name->next_unknown;
            continue;
        }
        *link = name->next_unknown;
        if (!name->is_told)
            forget(name);
    }
}

static int is_known(const struct name *name)
{
    const struct sandbox *s = sandbox_newest();
    uint32_t number = number_of(name);
    while (s && !((s->known_names[number / 8] | s->used[number / 8]) >> number % 8 & 1))
        s = s->next;
    return s != NULL;
}

/* Called when no number is left: free those whose sandboxes have all ended. Otherwise their names would block all
 * later ones. This isn't done often, since it is useless while the sandboxes live. */
static void sweep(void)
{
    static int64_t last;
    int64_t time = now();
    if (last && time - last < SECOND)
        return;
    last = time;
    names_tick(time); /* after this, the list of unknown names has none that a sandbox knows */
    for (int i = 0; i < MOST_NAMES; i++)
        if (names[i] && names[i]->is_told && !names[i]->is_busy && !is_known(names[i]))
            forget(names[i]);
}

void name_tell(struct sandbox *sandbox, struct name *name)
{
    uint32_t number = number_of(name);
    sandbox->n_names += !name->is_told;
    name->is_told = 1;
    sandbox->known_names[number / 8] |= (uint8_t)(1u << number % 8);
}

int name_is_told(const struct sandbox *sandbox, const struct name *name)
{
    uint32_t number = number_of(name);
    return sandbox->known_names[number / 8] >> number % 8 & 1;
}

void name_use(struct sandbox *sandbox, const struct name *name)
{
    uint32_t number = number_of(name);
    sandbox->used[number / 8] |= (uint8_t)(1u << number % 8);
}
