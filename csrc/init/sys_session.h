/* sys_session.h: the system calls that only pid 1 of a session makes, besides those of sys.h; part of the audit list. */
#ifndef NSBOX_SYS_SESSION_H
#define NSBOX_SYS_SESSION_H

#include "../linux/sys.h"

static inline int sys_recvmsg(int fd, void *message, int flags)
{
    return (int)S3(__NR_recvmsg, fd, message, flags);
}
static inline int sys_sendmsg_flags(int fd, const void *message, int flags)
{
    return (int)S3(__NR_sendmsg, fd, message, flags);
}
static inline int sys_wait_usage(int pid, int *status, int options, struct sys_rusage *used)
{
    return (int)S4(__NR_wait4, pid, status, options, used);
}
static inline int sys_close_range_cloexec(unsigned first, unsigned last)
{
    return (int)S3(__NR_close_range, first, last, 4 /* CLOSE_RANGE_CLOEXEC, Linux 5.11 */);
}
static inline long sys_map_private(int fd, uint64_t size)
{
    return arch_syscall(__NR_mmap, 0, (long)size, 3 /* PROT_READ | PROT_WRITE */, 2 /* MAP_PRIVATE */, fd, 0);
}

#endif
