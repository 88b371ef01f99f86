/* list.c: the list in force, and how one is read. */
#include "relay.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct rules list;

int list_load(int fd, struct rules *rules)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return -errno;
    if (!S_ISREG(info.st_mode) || info.st_size <= 0 || info.st_size > NSBOX_NET_MOST)
        return -EINVAL;
    size_t size = (size_t)info.st_size, at = 0;
    uint8_t *blob = malloc(size);
    ssize_t n = 1;
    while (blob && at < size && n > 0) {
        n = pread(fd, blob + at, size - at, (off_t)at);
        at += n > 0 ? (size_t)n : 0;
    }
    int ret = !blob ? -ENOMEM : n < 0 ? -errno : n == 0 ? -EIO : rules_read(rules, blob, size);
    if (ret)
        free(blob);
    return ret;
}

int list_read(int fd)
{
    int ret = list_load(fd, &list);
    close(fd);
    return ret;
}
