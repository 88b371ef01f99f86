/* sys_session.h: the system calls that only pid 1 of a session makes, in addition to sys.h; part of the audit list. */
#ifndef NSBOX_SYS_SESSION_H
#define NSBOX_SYS_SESSION_H

#include "sys.h"

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
static inline int sys_limits_of(int pid, unsigned resource, struct sys_rlimit *now)
{
    return (int)S4(__NR_prlimit64, pid, resource, 0, now);
}
/* Passes the secret as a sixth argument, which the kernel ignores but a filter sees. */
static inline int sys_limit_by(unsigned resource, const struct sys_rlimit *limit, uint64_t secret)
{
    return (int)arch_syscall(__NR_prlimit64, 0, resource, (long)(uintptr_t)limit, 0, 0, (long)secret);
}
static inline int sys_getresuid(uint32_t *r, uint32_t *e, uint32_t *s)
{
    return (int)S3(__NR_getresuid, r, e, s);
}
static inline int sys_getresgid(uint32_t *r, uint32_t *e, uint32_t *s)
{
    return (int)S3(__NR_getresgid, r, e, s);
}
static inline int sys_set_nonblocking(int fd)
{
    return (int)S3(__NR_fcntl, fd, 4 /* F_SETFL */, O_NONBLOCK);
}
static inline long sys_pwrite(int fd, const void *data, size_t n, int64_t at)
{
    return S4(__NR_pwrite64, fd, data, n, at);
}
static inline int sys_getdents(int fd, void *entries, size_t room)
{
    return (int)S3(__NR_getdents64, fd, entries, room);
}
static inline int sys_is_procfs(int fd)
{
    int64_t statfs[16];
    return S2(__NR_fstatfs, fd, statfs) >= 0 && statfs[0] == 0x9fa0;
}

#endif
