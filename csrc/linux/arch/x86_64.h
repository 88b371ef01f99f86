/* arch/x86_64.h: how to enter the kernel on this processor; nothing else. */
#ifndef NSBOX_ARCH_H
#define NSBOX_ARCH_H

/* The kernel keeps all registers but rax, rcx and r11. */
static inline long arch_syscall(long nr, long a, long b, long c, long d, long e, long f)
{
    long ret;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return ret;
}

/* clone(2) with a stack of its own, on which the child calls fn(arg) and leaves with exit_group(127)
 * should fn return. `top` is 16-byte aligned. Order of the raw arguments: flags, stack, parent_tid, child_tid, tls. */
static inline long arch_clone(unsigned long flags, void *top, int *parent_tid, int *child_tid, void (*fn)(void *),
                              void *arg)
{
    void **sp = (void **)top;
    *--sp = arg;
    *--sp = (void *)fn;
    long ret;
    register int *r10 __asm__("r10") = child_tid;
    register long r8 __asm__("r8") = 0;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t" /* end of the chain of frames */
                     "pop %%rax\n\t"
                     "pop %%rdi\n\t"
                     "call *%%rax\n\t"
                     "mov $127, %%edi\n\t"
                     "mov $231, %%eax\n\t" /* exit_group */
                     "syscall\n\t"
                     "hlt\n\t"
                     "1:"
                     : "=a"(ret)
                     : "a"(56L), "D"(flags), "S"(sp), "d"(parent_tid), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return ret;
}

/* Entry point of a program without a C library. */
#define ARCH_START(main)                                                                                               \
    __asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tand $-16, %rsp\n\tcall " #main "\n\thlt\n")

#endif
