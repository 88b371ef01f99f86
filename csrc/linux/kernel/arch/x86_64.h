/* arch/x86_64.h: how to enter the kernel on this processor; nothing else. */
#ifndef NSBOX_ARCH_H
#define NSBOX_ARCH_H

/* The kernel preserves all registers except rax, rcx and r11. */
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

/* clone(2) or clone3(2), by number. On the child's stack lie a function and its argument: the child calls it, and
 * leaves with exit_group(127) should it return. */
static inline long arch_clone_raw(long nr, long a, long b, long c, long d)
{
    long ret;
    register long r10 __asm__("r10") = d;
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
                     : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return ret;
}

/* `top` is 16-byte aligned. Order of the raw arguments: flags, stack, parent_tid, child_tid, tls. */
static inline long arch_clone(unsigned long flags, void *top, int *parent_tid, int *child_tid, void (*fn)(void *),
                              void *arg)
{
    void **sp = (void **)top;
    *--sp = arg;
    *--sp = (void *)fn;
    return arch_clone_raw(56L, (long)flags, (long)sp, (long)parent_tid, (long)child_tid);
}

/* Like setjmp and longjmp, for the registers that a function call preserves. arch_save() returns 0; it returns
 * again, with 1, when arch_resume() is called, even in a copy of the memory and on another stack. */
struct arch_context {
    uint64_t words[8];
};
int arch_save(struct arch_context *context) __attribute__((returns_twice));
_Noreturn void arch_resume(const struct arch_context *context);

#define ARCH_SAVE_AND_RESUME                                                                                           \
    __asm__(".text\n.hidden arch_save\n.globl arch_save\n.type arch_save, @function\narch_save:\n\t"                   \
            "mov %rbx, (%rdi)\n\tmov %rbp, 8(%rdi)\n\tmov %r12, 16(%rdi)\n\tmov %r13, 24(%rdi)\n\t"                    \
            "mov %r14, 32(%rdi)\n\tmov %r15, 40(%rdi)\n\tlea 8(%rsp), %rax\n\tmov %rax, 48(%rdi)\n\t"                  \
            "mov (%rsp), %rax\n\tmov %rax, 56(%rdi)\n\txor %eax, %eax\n\tret\n"                                        \
            ".hidden arch_resume\n.globl arch_resume\n.type arch_resume, @function\narch_resume:\n\t"                  \
            "mov (%rdi), %rbx\n\tmov 8(%rdi), %rbp\n\tmov 16(%rdi), %r12\n\tmov 24(%rdi), %r13\n\t"                    \
            "mov 32(%rdi), %r14\n\tmov 40(%rdi), %r15\n\tmov 48(%rdi), %rsp\n\tmov $1, %eax\n\tjmp *56(%rdi)\n")

/* Entry point of a program without a C library. */
#define ARCH_START(main)                                                                                               \
    __asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tand $-16, %rsp\n\tcall " #main "\n\thlt\n")

/* The same for a main() that gets the stack: argc, the arguments, NULL, the environment, NULL. */
#define ARCH_START_WITH_STACK(main)                                                                                    \
    __asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall " #main "\n\thlt\n")

/* What a signal handler returns to: rt_sigreturn(2). The kernel demands it of the program (SA_RESTORER). */
#define ARCH_SA_RESTORER 0x04000000UL
void arch_restore(void);
#define ARCH_RESTORE                                                                                                   \
    __asm__(".text\n.hidden arch_restore\n.globl arch_restore\n.type arch_restore, @function\narch_restore:\n\t"       \
            "mov $15, %eax\n\tsyscall\n\thlt\n")

#endif
