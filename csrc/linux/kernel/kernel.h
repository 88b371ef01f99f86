/* kernel.h: numbers and structures of the kernel that its headers don't give us, or that the C library defines
 * otherwise. */
#ifndef NSBOX_KERNEL_H
#define NSBOX_KERNEL_H

#include <stdint.h>

/* Constants that the C library guards. */
#define SYS_O_CLOEXEC 02000000
#define SYS_MNT_DETACH 2
#define SYS_MS_UNBINDABLE (1UL << 17)
#define SYS_MS_PRIVATE (1UL << 18)
#define SYS_S_IFMT 0170000
#define SYS_S_IFDIR 0040000
#define SYS_S_IFLNK 0120000
#define SYS_S_IFREG 0100000
#define SYS_S_IFIFO 0010000
#define SYS_SIGSET_BYTES 8

typedef uint64_t sys_sigset; /* the kernel's: bit n-1 for signal n */
#define SIGNAL_BIT(n) ((sys_sigset)1 << ((n)-1))

/* The kernel's struct sigaction, which differs from the C library's. */
struct sys_sigaction {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    sys_sigset mask;
};
/* The kernel's struct ifreq, as far as flags go. */
struct sys_ifreq {
    char name[16];
    short flags;
    char rest[22];
};
/* The kernel's struct rusage; its last fields don't matter here. */
struct sys_rusage {
    int64_t user[2]; /* seconds, microseconds */
    int64_t system[2];
    int64_t max_rss; /* KiB */
    int64_t rest[13];
};

struct sys_rlimit {
    uint64_t soft, hard;
};

/* Indices into siginfo_t, seen as int32_t[SI_WORDS], on 64-bit machines. */
enum { SI_CODE = 2, SI_PID = 4, SI_STATUS = 6, SI_WORDS = 32 };
enum { SI_EXITED = 1 }; /* CLD_EXITED */

#endif
