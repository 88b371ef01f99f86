/* orders.h: the file with the helper program's orders: how it becomes a command. Its layout is in helper.h. */
#ifndef NSBOX_ORDERS_H
#define NSBOX_ORDERS_H

#include <stddef.h>

/* Each list ends in NULL. The strings are in one piece of memory, as they were read. */
struct orders {
    char **profile; /* its text; then its parameters: key, value, ... */
    char **programs;
    char **argv;
    char **envp;
};

/* Reads such a file: 0 or -errno, -EINVAL if it isn't one. What is allocated stays: the process becomes another
 * program. */
int orders_read(int fd, struct orders *t);

/* The same for `size` bytes in memory, which the lists point into. */
int orders_parse(char *text, size_t size, struct orders *t);

#endif
