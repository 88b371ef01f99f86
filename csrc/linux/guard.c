/* guard.c: the seccomp filter that no command is without, whatever its policy.
 *
 * The command is the caller's own child, shares its session keyring, and has the init's kernel uid: ways out that no
 * namespace covers. clone(2) with CLONE_PARENT would make children of the caller, for which the end of the sandbox
 * would wait, and PTRACE_TRACEME makes the caller a tracer, without whom a traced thread can't even die; keyctl(2) reads the keyring (credentials), and with KEYCTL_SESSION_TO_PARENT replaces it; the scheduling
 * calls could starve pid 1, so that the sandbox outlives the command by minutes. clone3(2), whose flags a filter can't
 * see, doesn't exist, so that C libraries use clone. Refusals are errors, never signals. A tool that makes such children
 * itself (nsbox, runc) needs NSBOX_NESTED.
 */
#include "child.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

struct abi {
    uint32_t arch, clone, clone3, ptrace, keys[3];
    uint32_t of_pid[5];  /* the first argument is a pid */
    uint32_t of_kind[2]; /* the first argument says what the second is: a pid, a process group, a user */
};

#define NATIVE                                                                                                         \
    __NR_clone, __NR_clone3, __NR_ptrace, {__NR_add_key, __NR_request_key, __NR_keyctl},                               \
        {__NR_sched_setparam, __NR_sched_setscheduler, __NR_sched_setaffinity, __NR_sched_setattr, __NR_prlimit64},    \
    {                                                                                                                  \
        __NR_setpriority, __NR_ioprio_set                                                                              \
    }

#define X32_BIT 0x40000000U /* on x86_64 the third system call table: none of it */
static const struct abi abis[] = {
#if defined(__x86_64__)
    {AUDIT_ARCH_X86_64, NATIVE},
    {AUDIT_ARCH_I386, 120, 435, 26, {286, 287, 288}, {154, 156, 241, 351, 340}, {97, 289}},
#else
    {AUDIT_ARCH_AARCH64, NATIVE},
    {AUDIT_ARCH_ARM, 120, 435, 26, {309, 310, 311}, {154, 156, 241, 380, 369}, {97, 314}},
#endif
};

enum { N_ABIS = sizeof abis / sizeof abis[0], MAX_CODE = 192 };

struct program {
    struct sock_filter code[MAX_CODE];
    unsigned short n;
};

static void emit(struct program *p, unsigned short code, uint32_t k, unsigned char yes, unsigned char no)
{
    p->code[p->n++] = (struct sock_filter){code, yes, no, k};
}

static void load(struct program *p, size_t offset)
{
    emit(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void answer(struct program *p, uint32_t action)
{
    emit(p, BPF_RET | BPF_K, action, 0, 0);
}

/* If the loaded word is k: this answer. */
static void answer_if(struct program *p, uint32_t k, uint32_t action)
{
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, k, 0, 1);
    answer(p, action);
}

enum { ABSENT = SECCOMP_RET_ERRNO | ENOSYS, REFUSED = SECCOMP_RET_ERRNO | EPERM };

/* Opens a rule for one system call; the rules end in a verdict. Returns where, for end_rule(). */
static unsigned short begin_rule(struct program *p, uint32_t nr)
{
    emit(p, BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 0);
    return (unsigned short)(p->n - 1);
}

static void end_rule(struct program *p, unsigned short begin)
{
    answer(p, SECCOMP_RET_ALLOW);
    p->code[begin].jf = (unsigned char)(p->n - begin - 1);
}

/* The kernel takes the low 32 bits of these arguments; both machines are little-endian. */
static void load_argument(struct program *p, unsigned i)
{
    load(p, offsetof(struct seccomp_data, args) + i * sizeof(uint64_t));
}

static void protect_init(struct program *p, const struct abi *abi)
{
    for (unsigned i = 0; i < sizeof abi->of_pid / sizeof abi->of_pid[0]; i++) {
        unsigned short rule = begin_rule(p, abi->of_pid[i]);
        load_argument(p, 0);
        answer_if(p, 1, REFUSED);
        end_rule(p, rule);
    }
    for (unsigned i = 0; i < 2; i++) {
        unsigned short rule = begin_rule(p, abi->of_kind[i]);
        load_argument(p, 0);
        answer_if(p, i ? 3 : 2, REFUSED); /* IOPRIO_WHO_USER, PRIO_USER: the init is of the same user */
        load_argument(p, 1);
        answer_if(p, 1, REFUSED);
        end_rule(p, rule);
    }
}

/* The rules of one system call table; the number is loaded. */
static void rules(struct program *p, const struct abi *abi, int nested)
{
    emit(p, BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    answer(p, ABSENT);
    for (unsigned i = 0; i < 3; i++)
        answer_if(p, abi->keys[i], ABSENT);
    if (!nested) {
        answer_if(p, abi->clone3, ABSENT);
        unsigned short rule = begin_rule(p, abi->clone);
        load_argument(p, 0);
        emit(p, BPF_JMP | BPF_JSET | BPF_K, CLONE_PARENT, 0, 1);
        answer(p, REFUSED);
        end_rule(p, rule);
    }
    unsigned short traced = begin_rule(p, abi->ptrace);
    load_argument(p, 0);
    answer_if(p, 0, REFUSED); /* PTRACE_TRACEME */
    end_rule(p, traced);
    protect_init(p, abi);
    answer(p, SECCOMP_RET_ALLOW);
}

int guard_install(const nsbox_request *r)
{
    struct program p;
    p.n = 0;
    for (unsigned i = 0; i < N_ABIS; i++) {
        load(&p, offsetof(struct seccomp_data, arch));
        unsigned short jump = p.n;
        emit(&p, BPF_JMP | BPF_JEQ | BPF_K, abis[i].arch, 0, 0);
        load(&p, offsetof(struct seccomp_data, nr));
        rules(&p, &abis[i], (r->flags & NSBOX_NESTED) != 0);
        p.code[jump].jf = (unsigned char)(p.n - jump - 1);
    }
    answer(&p, ABSENT); /* a table that we don't know */
    struct sock_fprog program = {.len = p.n, .filter = p.code};
    return sys_seccomp(SECCOMP_SET_MODE_FILTER, 0, &program);
}
