/* sys_program.h: system calls of the program bwrap and of the parser of its command line, beside those of sys.h. */
#ifndef NSBOX_SYS_PROGRAM_H
#define NSBOX_SYS_PROGRAM_H

#include <stdbool.h>

#include "sys.h"

/* Memory of zeros, or NULL. */
static inline void *sys_map(uint64_t size)
{
    long at = arch_syscall(__NR_mmap, 0, (long)size, 3 /* PROT_READ | PROT_WRITE */,
                           0x22 /* MAP_PRIVATE | _ANONYMOUS */, -1, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}
/* The same, which children share. */
static inline void *sys_map_shared(uint64_t size)
{
    long at = arch_syscall(__NR_mmap, 0, (long)size, 3 /* PROT_READ | PROT_WRITE */, 0x21 /* MAP_SHARED | _ANONYMOUS */,
                           -1, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}
static inline void sys_unmap(void *at, uint64_t size)
{
    S2(__NR_munmap, at, size);
}

#define SYS_AT_EMPTY_PATH 0x1000
#ifndef STATX_TYPE
#define STATX_TYPE 0x1U
#define STATX_UID 0x8U
#define STATX_INO 0x100U
#endif

/* The kernel's struct linux_dirent64. */
struct sys_dirent {
    uint64_t ino;
    int64_t offset;
    uint16_t length;
    uint8_t type;
    char name[];
};

static inline uint32_t sys_getuid(void)
{
    return (uint32_t)S0(__NR_getuid);
}
static inline uint32_t sys_getgid(void)
{
    return (uint32_t)S0(__NR_getgid);
}
static inline uint32_t sys_geteuid(void)
{
    return (uint32_t)S0(__NR_geteuid);
}
static inline uint32_t sys_getegid(void)
{
    return (uint32_t)S0(__NR_getegid);
}
/* By the effective ids. */
static inline bool sys_may_write(const char *path)
{
    return S4(439 /* faccessat2, Linux 5.8 */, AT_FDCWD, path, 2 /* W_OK */, 0x200 /* AT_EACCESS */) >= 0;
}
static inline int sys_fcntl(int fd, int what, void *arg)
{
    return (int)S3(__NR_fcntl, fd, what, arg);
}
/* A copy of this process; its signal for us is 0. */
static inline long sys_fork(void)
{
    return arch_syscall(__NR_clone, 0, 0, 0, 0, 0, 0);
}
static inline void sys_exit_thread(void)
{
    S1(__NR_exit, 0);
}
static inline int sys_sigtimedwait(const sys_sigset *set, void *info, const int64_t timeout[2])
{
    return (int)S4(__NR_rt_sigtimedwait, set, info, timeout, SYS_SIGSET_BYTES);
}

#endif
