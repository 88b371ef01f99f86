/* told.h: the file that says how the helper program becomes a command. Its layout is in helper.h. */
#ifndef NSBOX_TOLD_H
#define NSBOX_TOLD_H

#include <stddef.h>

/* Each list ends in NULL. Their strings are in one piece of memory, as it was read. */
struct told {
    char **profile; /* its text; then its parameters: key, value, ... */
    char **programs;
    char **argv;
    char **envp;
};

/* 0 or -errno, -EINVAL for what isn't such a file. What is allocated stays: the process becomes another program. */
int told_read(int fd, struct told *t);

/* The same of `size` bytes in memory, which the lists point into. */
int told_parse(char *text, size_t size, struct told *t);

#endif
