/* hosts.c: one line of hosts(5): an address, then names, then perhaps a comment. */
#include "hosts.h"
#include <string.h>
#include <strings.h>

static const char BLANK[] = " \t\r\n\f\v";

int hosts_line_has(const char *line, const char *name)
{
    size_t size = strlen(name), end = strcspn(line, "#");
    const char *at = line + strspn(line, BLANK), *stop = line + end;
    at += strcspn(at, BLANK); /* the address */
    while (size && at < stop) {
        at += strspn(at, BLANK);
        size_t word = strcspn(at, " \t\r\n\f\v#");
        if (word == size && at + word <= stop && !strncasecmp(at, name, size))
            return 1;
        at += word ? word : 1;
    }
    return 0;
}
