/* told.h: the file that says how the helper program becomes a command. Its layout is in helper.h. */
#ifndef NSBOX_TOLD_H
#define NSBOX_TOLD_H

#include <stddef.h>

/* Each list ends in NULL. The strings are in one piece of memory, as they were read. */
struct told {
    char **profile; /* its text; then its parameters: key, value, ... */
    char **programs;
    char **argv;
    char **envp;
};

/* Reads such a file: 0 or -errno, -EINVAL if it isn't one. What is allocated stays: the process becomes another
 * program. */
int told_read(int fd, struct told *t);

/* The same for `size` bytes in memory, which the lists point into. */
int told_parse(char *text, size_t size, struct told *t);

#endif
