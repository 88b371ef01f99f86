/* arch/aarch64.h: how to enter the kernel on this processor; nothing else. */
#ifndef NSBOX_ARCH_H
#define NSBOX_ARCH_H

static inline long arch_syscall(long nr, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = nr;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
    return x0;
}

/* clone(2) with a stack of its own, on which the child calls fn(arg) and leaves with exit_group(127)
 * should fn return. `top` is 16-byte aligned. Order of the raw arguments here: flags, stack, parent_tid, tls, child_tid. */
static inline long arch_clone(unsigned long flags, void *top, int *parent_tid, int *child_tid, void (*fn)(void *),
                              void *arg)
{
    void **sp = (void **)top;
    *--sp = arg;
    *--sp = (void *)fn;
    register long x8 __asm__("x8") = 220;
    register long x0 __asm__("x0") = (long)flags;
    register void **x1 __asm__("x1") = sp;
    register int *x2 __asm__("x2") = parent_tid;
    register long x3 __asm__("x3") = 0;
    register int *x4 __asm__("x4") = child_tid;
    __asm__ volatile("svc #0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, xzr\n\t" /* end of the chain of frames */
                     "mov x30, xzr\n\t"
                     "ldp x1, x0, [sp], #16\n\t"
                     "blr x1\n\t"
                     "mov x0, #127\n\t"
                     "mov x8, #94\n\t" /* exit_group */
                     "svc #0\n\t"
                     "brk #0\n\t"
                     "1:"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4)
                     : "x30", "memory", "cc");
    return x0;
}

/* Entry point of a program without a C library. */
#define ARCH_START(main) __asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tmov x30, xzr\n\tbl " #main "\n\tbrk #0\n")

#endif
