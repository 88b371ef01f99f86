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

/* clone(2) or clone3(2), by number. On the child's stack lie a function and its argument: the child calls it, and
 * leaves with exit_group(127) should it return. */
static inline long arch_clone_raw(long nr, long a, long b, long c, long e)
{
    register long x8 __asm__("x8") = nr;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = e;
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

/* `top` is 16-byte aligned. Order of the raw arguments here: flags, stack, parent_tid, tls, child_tid. */
static inline long arch_clone(unsigned long flags, void *top, int *parent_tid, int *child_tid, void (*fn)(void *),
                              void *arg)
{
    void **sp = (void **)top;
    *--sp = arg;
    *--sp = (void *)fn;
    return arch_clone_raw(220, (long)flags, (long)sp, (long)parent_tid, (long)child_tid);
}

/* Like setjmp and longjmp, for the registers that a function call preserves. arch_save() returns 0; it returns
 * again, with 1, when arch_resume() is called, even in a copy of the memory and on another stack. */
struct arch_context {
    uint64_t words[22];
};
int arch_save(struct arch_context *context) __attribute__((returns_twice));
_Noreturn void arch_resume(const struct arch_context *context);

#define ARCH_SAVE_AND_RESUME                                                                                           \
    __asm__(".text\n.hidden arch_save\n.globl arch_save\n.type arch_save, %function\narch_save:\n\t"                   \
            "stp x19, x20, [x0]\n\tstp x21, x22, [x0, #16]\n\tstp x23, x24, [x0, #32]\n\tstp x25, x26, [x0, #48]\n\t"  \
            "stp x27, x28, [x0, #64]\n\tstp x29, x30, [x0, #80]\n\tmov x2, sp\n\tstr x2, [x0, #96]\n\t"                \
            "stp d8, d9, [x0, #104]\n\tstp d10, d11, [x0, #120]\n\tstp d12, d13, [x0, #136]\n\t"                       \
            "stp d14, d15, [x0, #152]\n\tmov w0, #0\n\tret\n"                                                          \
            ".hidden arch_resume\n.globl arch_resume\n.type arch_resume, %function\narch_resume:\n\t"                  \
            "ldp x19, x20, [x0]\n\tldp x21, x22, [x0, #16]\n\tldp x23, x24, [x0, #32]\n\tldp x25, x26, [x0, #48]\n\t"  \
            "ldp x27, x28, [x0, #64]\n\tldp x29, x30, [x0, #80]\n\tldr x2, [x0, #96]\n\tmov sp, x2\n\t"                \
            "ldp d8, d9, [x0, #104]\n\tldp d10, d11, [x0, #120]\n\tldp d12, d13, [x0, #136]\n\t"                       \
            "ldp d14, d15, [x0, #152]\n\tmov w0, #1\n\tret\n")

/* Entry point of a program without a C library. */
#define ARCH_START(main) __asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tmov x30, xzr\n\tbl " #main "\n\tbrk #0\n")

/* The same for a main() that gets the stack: argc, the arguments, NULL, the environment, NULL. */
#define ARCH_START_WITH_STACK(main)                                                                                    \
    __asm__(".globl _start\n_start:\n\tmov x29, xzr\n\tmov x30, xzr\n\tmov x0, sp\n\tbl " #main "\n\tbrk #0\n")

/* What a signal handler returns to is the kernel's own here. */
#define ARCH_SA_RESTORER 0UL
static inline void arch_restore(void)
{
}
#define ARCH_RESTORE

#endif
