/* files.c: what Python's os module lacks for work in a tree that others change meanwhile. For the caller, never a child. */
#include "calls.h"
#include "kernel/sys.h"

int nsbox_open_beneath(int dir, const char *path, uint64_t flags, uint64_t resolve)
{
    return sys_openat2(dir, path, flags, 0, resolve);
}

int nsbox_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return sys_renameat2(from_dir, from, to_dir, to, flags);
}

int nsbox_sync(int fd)
{
    return sys_syncfs(fd);
}
