/* directory.h: entering the command's directory, behind its filters; for pid 1 of a session too. */
#ifndef NSBOX_DIRECTORY_H
#define NSBOX_DIRECTORY_H

#include "abi.h"
#include "sys.h"

/* The command's number in the sandbox is known, 2: a link to /proc/2/fd/N, planted by an earlier command, would lead to
 * whatever is still open here (CVE-2024-21626). So it has to be a directory that our root leads to, which the kernel
 * says: of others getcwd(2) begins with "(unreachable)". openat2(2) is refused by the command's filters already. */
static inline int enter_directory(const char *path)
{
    char name[NSBOX_PATH_MAX];
    int ret = sys_chdir(path);
    if (ret < 0)
        return ret;
    ret = sys_getcwd(name, sizeof name);
    if (ret >= 0 && name[0] == '/')
        return 0;
    sys_chdir("/"); /* where it stays if that is no error */
    return ret < 0 ? ret : -ELOOP;
}

#endif
