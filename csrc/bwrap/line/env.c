/* env.c: the environment, an array of "NAME=VALUE", which bubblewrap changes as it reads the options. */
#include "line.h"

static bool is_variable(const char *entry, const char *name)
{
    const char *rest = text_after(entry, name);
    return rest && *rest == '=';
}

/* setenv(3) and unsetenv(3), which bubblewrap calls, refuse other names. */
static bool is_name(const char *name)
{
    const char *ch = name;
    while (*ch && *ch != '=')
        ch++;
    return ch > name && !*ch;
}

void env_set(struct reader *r, const struct option *o, const char *const *args)
{
    (void)o;
    const char *name = args[0], *value = args[1];
    const char **entry = r->env.items, **end = entry + r->env.n;
    if (!is_name(name)) {
        DIE(r, "setenv failed");
        return;
    }
    while (entry < end && !is_variable(*entry, name))
        entry++;
    if (entry == end)
        entry = reader_add(r, &r->env, sizeof *entry);
    if (entry)
        *entry = reader_text(r, (const char *const[]){name, "=", value, NULL});
}

void env_unset(struct reader *r, const struct option *o, const char *const *args)
{
    (void)o;
    const char *name = args[0];
    const char **entries = r->env.items;
    uint64_t kept = 0;
    if (!is_name(name)) {
        DIE(r, "unsetenv failed");
        return;
    }
    for (uint64_t i = 0; i < r->env.n; i++)
        if (!is_variable(entries[i], name))
            entries[kept++] = entries[i];
    r->env.n = kept;
}
