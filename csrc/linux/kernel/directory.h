/* directory.h: enters the command's directory, behind its filters; for pid 1 of a session too. */
#ifndef NSBOX_DIRECTORY_H
#define NSBOX_DIRECTORY_H

#include "abi.h"
#include "sys.h"

/* Enters a directory; 0 or -errno. The command's number in the sandbox is known to be 2, so an earlier command could
 * plant a link to /proc/2/fd/N, which would lead to whatever is still open here (CVE-2024-21626). So it has to be a
 * directory that our root leads to. The kernel tells: for others the path from getcwd(2) begins with
 * "(unreachable)". openat2(2) is refused by the command's filters already. */
static inline int enter_directory(const char *path)
{
    char name[NSBOX_PATH_MAX];
    int ret = sys_chdir(path);
    if (ret < 0)
        return ret;
    ret = sys_getcwd(name, sizeof name);
    if (ret >= 0 && name[0] == '/')
        return 0;
    sys_chdir("/"); /* it stays there if that is */
    return ret < 0 ? ret : -ELOOP;
}

#endif
