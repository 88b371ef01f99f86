/* files.c: what Python's os module lacks for changing a tree in steps that can be undone. For the caller, never a child. */
#include "../abi.h"
#include "sys.h"

int nsbox_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return sys_renameat2(from_dir, from, to_dir, to, flags);
}

int nsbox_sync(int fd)
{
    return sys_syncfs(fd);
}
