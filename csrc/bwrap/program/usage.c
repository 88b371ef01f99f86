/* usage.c: the text of --help, made from the table of options. */
#include "program.h"

static uint64_t width_of(const struct option *o)
{
    return text_length(o->name) + (*o->args ? 1 + text_length(o->args) : 0);
}

void usage(struct program *p, int fd)
{
    static const char spaces[] = "                                                                ";
    const char *group = "", *text = JOIN(p, "usage: ", p->name, " [OPTIONS...] [--] COMMAND [ARGS...]\n");
    uint64_t width = 0;
    for (const struct option *o = option_table; o->name; o++)
        if (width_of(o) > width)
            width = width_of(o);
    for (const struct option *o = option_table; o->name && text; o++) {
        if (!text_is(o->group, group))
            text = JOIN(p, text, "\n", o->group, ":\n");
        group = o->group;
        const char *gap = spaces + sizeof spaces - 1 - (width - width_of(o)) - 2;
        text = text ? JOIN(p, text, "    ", o->name, *o->args ? " " : "", o->args, gap, o->help, "\n") : NULL;
    }
    for (uint64_t n = text ? text_length(text) : 0; n;) {
        long done = sys_write(fd, text, n);
        if (done < 0) {
            p->has_failed = true;
            return;
        }
        text += done;
        n -= (uint64_t)done;
    }
}
