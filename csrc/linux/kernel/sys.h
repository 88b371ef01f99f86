/* sys.h: every system call that the children of a spawn may make, one inline function each. With sys_mount.h and the
 * other sys_*.h this is the audit list: a call that isn't here isn't made between clone and exec. Each function returns what the kernel returns, -errno on
 * failure. They never touch errno, the C library or its locks, since the children run in the caller's memory while
 * its other threads go on. */
#ifndef NSBOX_SYS_H
#define NSBOX_SYS_H

#include <stddef.h>
#include <stdint.h>

#include <asm/signal.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <linux/poll.h>
#include <linux/prctl.h>
#include <linux/securebits.h>

#if defined(__x86_64__)
#include "arch/x86_64.h"
#elif defined(__aarch64__)
#include "arch/aarch64.h"
#else
#error "nsbox's core knows x86_64 and aarch64"
#endif

/* errno values: <asm/errno.h> has them as macros without the C library's errno. */
#include <asm/errno.h>

#include "kernel.h"
#include "uapi.h"

#define S0(nr) arch_syscall((nr), 0, 0, 0, 0, 0, 0)
#define S1(nr, a) arch_syscall((nr), (long)(a), 0, 0, 0, 0, 0)
#define S2(nr, a, b) arch_syscall((nr), (long)(a), (long)(b), 0, 0, 0, 0)
#define S3(nr, a, b, c) arch_syscall((nr), (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define S4(nr, a, b, c, d) arch_syscall((nr), (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define S5(nr, a, b, c, d, e) arch_syscall((nr), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)

/* files */
static inline int sys_openat(int dir, const char *path, int flags, unsigned mode)
{
    return (int)S4(__NR_openat, dir, path, flags | SYS_O_CLOEXEC, mode);
}
static inline int sys_openat2(int dir, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve)
{
    struct sys_open_how how = {.flags = flags | SYS_O_CLOEXEC, .mode = mode, .resolve = resolve};
    return (int)S4(__NR_openat2, dir, path, &how, sizeof how);
}
static inline int sys_close(int fd)
{
    return fd < 0 ? -EBADF : (int)S1(__NR_close, fd);
}
static inline int sys_close_range(unsigned first, unsigned last)
{
    return (int)S3(__NR_close_range, first, last, 0);
}
static inline int sys_dup3(int fd, int to, int flags)
{
    return (int)S3(__NR_dup3, fd, to, flags);
}
static inline int sys_dupfd_cloexec(int fd, int at_least)
{
    return (int)S3(__NR_fcntl, fd, F_DUPFD_CLOEXEC, at_least);
}
static inline int sys_set_pipe_size(int fd, unsigned bytes)
{
    return (int)S3(__NR_fcntl, fd, F_SETPIPE_SZ, bytes);
}
static inline int sys_get_fd_flags(int fd)
{
    return (int)S3(__NR_fcntl, fd, F_GETFD, 0);
}
static inline int sys_get_status_flags(int fd)
{
    return (int)S3(__NR_fcntl, fd, F_GETFL, 0);
}
static inline int sys_set_fd_flags(int fd, int flags)
{
    return (int)S3(__NR_fcntl, fd, F_SETFD, flags);
}
static inline int sys_add_seals(int fd, int seals)
{
    return (int)S3(__NR_fcntl, fd, F_ADD_SEALS, seals);
}
static inline long sys_write(int fd, const void *p, size_t n)
{
    return S3(__NR_write, fd, p, n);
}
static inline long sys_read(int fd, void *p, size_t n)
{
    return S3(__NR_read, fd, p, n);
}
static inline int sys_pipe2(int fds[2], int flags)
{
    return (int)S2(__NR_pipe2, fds, flags);
}
static inline int sys_statx(int fd, const char *path, int flags, unsigned mask, struct sys_statx *st)
{
    return (int)S5(__NR_statx, fd, path, flags, mask, st);
}
/* Is it from pipe(2)? Then fstatfs(2) says pipefs, PIPEFS_MAGIC of <linux/magic.h>. */
static inline int sys_is_anonymous_pipe(int fd)
{
    int64_t statfs[16];
    return S2(__NR_fstatfs, fd, statfs) >= 0 && statfs[0] == 0x50495045;
}
static inline int sys_mkdirat(int dir, const char *name, unsigned mode)
{
    return (int)S3(__NR_mkdirat, dir, name, mode);
}
static inline int sys_mknodat(int dir, const char *name, unsigned mode)
{
    return (int)S4(__NR_mknodat, dir, name, mode, 0);
}
static inline int sys_symlinkat(const char *target, int dir, const char *name)
{
    return (int)S3(__NR_symlinkat, target, dir, name);
}
static inline long sys_readlinkat(int dir, const char *name, char *buf, size_t n)
{
    return S4(__NR_readlinkat, dir, name, buf, n);
}
static inline int sys_unlinkat(int dir, const char *name, int flags)
{
    return (int)S3(__NR_unlinkat, dir, name, flags);
}
static inline int sys_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return (int)S5(__NR_renameat2, from_dir, from, to_dir, to, flags);
}
static inline int sys_syncfs(int fd)
{
    return (int)S1(__NR_syncfs, fd);
}
static inline int sys_fchmod(int fd, unsigned mode)
{
    return (int)S2(__NR_fchmod, fd, mode);
}
/* The link itself, if the last name is one's. */
static inline int sys_lchownat(int dir, const char *name, unsigned uid, unsigned gid)
{
    return (int)S5(__NR_fchownat, dir, name, uid, gid, AT_SYMLINK_NOFOLLOW);
}
static inline int sys_ftruncate(int fd, long size)
{
    return (int)S2(__NR_ftruncate, fd, size);
}
static inline int sys_fchdir(int fd)
{
    return (int)S1(__NR_fchdir, fd);
}
static inline int sys_chdir(const char *path)
{
    return (int)S1(__NR_chdir, path);
}
static inline int sys_getcwd(char *name, size_t room)
{
    return (int)S2(__NR_getcwd, name, room);
}
static inline int sys_umask(unsigned mask)
{
    return (int)S1(__NR_umask, mask);
}
static inline int sys_memfd_create(const char *name, unsigned flags)
{
    return (int)S2(__NR_memfd_create, name, flags);
}
static inline int sys_ioctl(int fd, unsigned long request, void *arg)
{
    return (int)S3(__NR_ioctl, fd, request, arg);
}
static inline int sys_socket(int family, int type, int protocol)
{
    return (int)S3(__NR_socket, family, type, protocol);
}
static inline int sys_sendmsg(int fd, const void *message)
{
    return (int)S3(__NR_sendmsg, fd, message, 0x4000 /* MSG_NOSIGNAL */);
}
static inline int sys_recvmsg(int fd, void *message, int flags)
{
    return (int)S3(__NR_recvmsg, fd, message, flags);
}
/* Type SOCK_SEQPACKET, family AF_UNIX. */
static inline int sys_packet_pair(int ends[2])
{
    return (int)S4(__NR_socketpair, 1, 5 | SYS_O_CLOEXEC, 0, ends);
}

/* identity */
static inline int sys_unshare(unsigned long flags)
{
    return (int)S1(__NR_unshare, flags);
}
static inline int sys_setns(int fd, int type)
{
    return (int)S2(__NR_setns, fd, type);
}
static inline int sys_setgroups(size_t n, const uint32_t *groups)
{
    return (int)S2(__NR_setgroups, n, groups);
}
static inline int sys_setresgid(uint32_t r, uint32_t e, uint32_t s)
{
    return (int)S3(__NR_setresgid, r, e, s);
}
static inline int sys_setresuid(uint32_t r, uint32_t e, uint32_t s)
{
    return (int)S3(__NR_setresuid, r, e, s);
}
static inline int sys_capset(struct __user_cap_header_struct *h, const struct __user_cap_data_struct *d)
{
    return (int)S2(__NR_capset, h, d);
}
static inline int sys_capget(struct __user_cap_header_struct *h, struct __user_cap_data_struct *d)
{
    return (int)S2(__NR_capget, h, d);
}
static inline int sys_prctl(int op, unsigned long a, unsigned long b)
{
    return (int)S5(__NR_prctl, op, a, b, 0, 0);
}
static inline int sys_landlock_create_ruleset(const void *attributes, size_t n, unsigned flags)
{
    return (int)S3(__NR_landlock_create_ruleset, attributes, n, flags);
}
static inline int sys_landlock_add_rule(int ruleset, int kind, const void *rule)
{
    return (int)S4(__NR_landlock_add_rule, ruleset, kind, rule, 0);
}
static inline int sys_landlock_restrict_self(int ruleset)
{
    return (int)S2(__NR_landlock_restrict_self, ruleset, 0);
}
static inline int sys_sethostname(const char *name, size_t n)
{
    return (int)S2(__NR_sethostname, name, n);
}
static inline int sys_prlimit(unsigned resource, const struct sys_rlimit *limit, struct sys_rlimit *old)
{
    return (int)S4(__NR_prlimit64, 0, resource, limit, old);
}

/* processes */
static inline int sys_gettid(void)
{
    return (int)S0(__NR_gettid);
}
static inline int sys_getpid(void)
{
    return (int)S0(__NR_getpid);
}
static inline int sys_getppid(void)
{
    return (int)S0(__NR_getppid);
}
static inline int sys_setsid(void)
{
    return (int)S0(__NR_setsid);
}
static inline int sys_getsid(int pid)
{
    return (int)S1(__NR_getsid, pid);
}
static inline int sys_setpgid(int pid, int pgid)
{
    return (int)S2(__NR_setpgid, pid, pgid);
}
static inline int sys_pidfd_send_signal(int pidfd, int sig)
{
    return (int)S4(__NR_pidfd_send_signal, pidfd, sig, 0, 0);
}
static inline int sys_kill(int pid, int sig)
{
    return (int)S2(__NR_kill, pid, sig);
}
static inline int sys_pidfd_open(int pid)
{
    return (int)S2(__NR_pidfd_open, pid, 0);
}
static inline int sys_waitid(int which, int id, void *info, int options)
{
    return (int)S5(__NR_waitid, which, id, info, options, 0);
}
static inline int sys_sched_yield(void)
{
    return (int)S0(__NR_sched_yield);
}
static inline int sys_getcpu(uint32_t *cpu)
{
    return (int)S3(__NR_getcpu, cpu, 0, 0);
}
/* Returns the size of the kernel's mask in bytes. */
static inline int sys_sched_getaffinity(int pid, size_t size, uint64_t *mask)
{
    return (int)S3(__NR_sched_getaffinity, pid, size, mask);
}
static inline int sys_sched_setaffinity(int pid, size_t size, const uint64_t *mask)
{
    return (int)S3(__NR_sched_setaffinity, pid, size, mask);
}
static inline int sys_wait4(int pid, int options)
{
    return (int)S4(__NR_wait4, pid, 0, options, 0);
}
static inline int sys_clock_gettime(int clock, int64_t time[2])
{
    return (int)S2(__NR_clock_gettime, clock, time);
}
static inline int sys_getrusage(int who, struct sys_rusage *usage)
{
    return (int)S2(__NR_getrusage, who, usage);
}
static inline int sys_signalfd(sys_sigset set, int flags)
{
    return (int)S4(__NR_signalfd4, -1, &set, SYS_SIGSET_BYTES, flags);
}
static inline int sys_ppoll(struct pollfd *fds, unsigned n, const void *timeout)
{
    return (int)S5(__NR_ppoll, fds, n, timeout, 0, SYS_SIGSET_BYTES);
}
static inline int sys_execve(const char *path, const char *const *argv, const char *const *envp)
{
    return (int)S3(__NR_execve, path, argv, envp);
}
static inline int sys_execveat(int fd, const char *path, const char *const *argv, const char *const *envp, int flags)
{
    return (int)S5(__NR_execveat, fd, path, argv, envp, flags);
}
static inline int sys_sigaction(int sig, const struct sys_sigaction *act, struct sys_sigaction *old)
{
    return (int)S4(__NR_rt_sigaction, sig, act, old, SYS_SIGSET_BYTES);
}
static inline int sys_sigpending(sys_sigset *set)
{
    return (int)S2(__NR_rt_sigpending, set, SYS_SIGSET_BYTES);
}
static inline int sys_sigprocmask(int how, const sys_sigset *set, sys_sigset *old)
{
    return (int)S4(__NR_rt_sigprocmask, how, set, old, SYS_SIGSET_BYTES);
}
static inline int sys_futex_wait(const uint32_t *word, uint32_t expected, const void *timeout)
{
    return (int)S4(__NR_futex, word, FUTEX_WAIT, expected, timeout);
}
static inline int sys_futex_wake(const uint32_t *word)
{
    return (int)S3(__NR_futex, word, FUTEX_WAKE, INT32_MAX);
}
_Noreturn static inline void sys_exit(int status)
{
    S1(__NR_exit_group, status);
    S1(__NR_exit, status); /* a seccomp filter of the caller's refuses the first one */
    for (;;)
        __builtin_trap();
}

#endif
