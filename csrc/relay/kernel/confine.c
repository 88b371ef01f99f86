/* confine.c: limits what the relay itself may do. It reads what sandboxes send, so a flaw in that must be of little
 * use.
 *
 * No program can be executed, no process traced or signalled, no file made or opened for writing, nothing mounted.
 * What getaddrinfo(3) does is allowed: reading files, making sockets of a few families and threads, loading
 * libraries. That leaves any file that the user can read, and any server that the user can reach.
 */
#include "confine.h"
#include <errno.h>
#include <linux/audit.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/nsfs.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_clone3
#define SYS_clone3 435 /* Linux 5.3, newer than the headers that are enough to build */
#endif

#ifdef __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), yes, no)
#define HAS(bits, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (uint32_t)(bits), yes, no)
#define RETURN(value) BPF_STMT(BPF_RET | BPF_K, (uint32_t)(value))
#define FAIL(error) RETURN(SECCOMP_RET_ERRNO | (error))
#define ALLOW RETURN(SECCOMP_RET_ALLOW)

/* The low half of an argument: both architectures are little-endian. */
#define LOAD_ARGUMENT(n) LOAD(args[n])

enum {
    NAMESPACES =
        CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
};
enum { WRITES = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND };

static const uint32_t ALLOWED[] = {
    /* sockets and events */
    SYS_accept4,
    SYS_bind,
    SYS_connect,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_getpeername,
    SYS_getsockname,
    SYS_getsockopt,

    SYS_listen,
    SYS_ppoll,
    SYS_recvfrom,
    SYS_recvmmsg,
    SYS_recvmsg,
    SYS_sendmmsg,
    SYS_sendmsg,
    SYS_sendto,
    SYS_setns,
    SYS_setsockopt,
    SYS_shutdown,
    SYS_splice,
    /* files, for the resolver */
    SYS_close,
    SYS_dup,
    SYS_dup3,
    SYS_faccessat,
    SYS_fcntl,
    SYS_fstat,
    SYS_fstatfs,
    SYS_getdents64,
    SYS_lseek,
    SYS_newfstatat,

    SYS_pipe2,
    SYS_pread64,
    SYS_read,
    SYS_readlinkat,
    SYS_readv,
    SYS_statx,
    SYS_uname,
    SYS_write,
    SYS_writev,
    SYS_getcwd,
    /* memory, threads, time */
    SYS_brk,
    SYS_madvise,
    SYS_mmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_munmap,
    SYS_clock_gettime,
    SYS_clock_nanosleep,
    SYS_exit,
    SYS_exit_group,
    SYS_futex,
    SYS_getegid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getpid,
    SYS_getrandom,
    SYS_gettid,
    SYS_getuid,
    SYS_gettimeofday,
    SYS_nanosleep,

    SYS_restart_syscall,
    SYS_rseq,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sched_getaffinity,
    SYS_sched_yield,
    SYS_set_robust_list,
    SYS_sysinfo,
    SYS_wait4,
#ifdef __x86_64__
    SYS_access,
    SYS_epoll_wait,

    SYS_poll,
    SYS_readlink,
    SYS_stat,
    SYS_lstat,
    SYS_time,
    SYS_pipe,
    SYS_dup2,
#endif
};

enum { MOST = 16 + sizeof ALLOWED / sizeof *ALLOWED * 2 };

static const struct sock_filter HEAD[] = {
    LOAD(arch),
    IS(ARCHITECTURE, 1, 0),
    RETURN(SECCOMP_RET_KILL_PROCESS),
    LOAD(nr),
    IS(SYS_clone3, 0, 1),
    FAIL(ENOSYS), /* its flags are behind a pointer; the libraries then use clone(2) */
    IS(SYS_clone, 0, 4),
    LOAD_ARGUMENT(0),
    HAS(NAMESPACES, 0, 1),
    FAIL(EPERM),
    ALLOW,
    IS(SYS_socket, 0, 7),
    LOAD_ARGUMENT(0),
    IS(AF_UNIX, 4, 0),
    IS(AF_INET, 3, 0),
    IS(AF_INET6, 2, 0),
    IS(AF_NETLINK, 1, 0),
    FAIL(EAFNOSUPPORT),
    ALLOW,
    IS(SYS_ioctl, 0, 5),
    LOAD_ARGUMENT(1),
    IS(NS_GET_USERNS, 1, 0),
    IS(FIONREAD, 0, 1),
    ALLOW,
    FAIL(ENOTTY),
    IS(SYS_prlimit64, 0, 4),
    LOAD_ARGUMENT(0),
    IS(0, 0, 1),
    ALLOW,
    FAIL(EPERM),
    IS(SYS_openat, 0, 4),
    LOAD_ARGUMENT(2),
    HAS(WRITES, 0, 1),
    FAIL(EACCES),
    ALLOW,
#ifdef __x86_64__
    IS(SYS_open, 0, 4),
    LOAD_ARGUMENT(1),
    HAS(WRITES, 0, 1),
    FAIL(EACCES),
    ALLOW,
#endif
};

int confine_calls(void)
{
    struct sock_filter filter[sizeof HEAD / sizeof *HEAD + MOST];
    unsigned short n = 0;
    for (size_t i = 0; i < sizeof HEAD / sizeof *HEAD; i++)
        filter[n++] = HEAD[i];
    for (size_t i = 0; i < sizeof ALLOWED / sizeof *ALLOWED; i++) {
        filter[n++] = (struct sock_filter)IS(ALLOWED[i], 0, 1);
        filter[n++] = (struct sock_filter)ALLOW;
    }
    filter[n++] = (struct sock_filter)FAIL(EPERM);
    const struct sock_fprog program = {n, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -errno;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? -errno : 0;
}
