/* guard.c: the seccomp filter that no command is without, whatever its policy.
 *
 * The command is the caller's own child, and shares its session keyring: two ways out that no namespace covers.
 * clone(2) with CLONE_PARENT would make children of the caller, which then wait for it to reap them while the
 * sandbox can't end; keyctl(2) reads the keyring (credentials), and with KEYCTL_SESSION_TO_PARENT replaces it.
 * clone3(2), whose flags a filter can't see, doesn't exist, so that C libraries use clone. Refusals are errors,
 * never signals. A tool that makes such children itself (nsbox, runc) needs NSBOX_NESTED.
 */
#include "child.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

struct abi {
    uint32_t arch, clone, clone3, add_key, request_key, keyctl;
};

#if defined(__x86_64__)
#define X32_BIT 0x40000000U /* the third system call table: none of it */
static const struct abi abis[] = {
    {AUDIT_ARCH_X86_64, __NR_clone, __NR_clone3, __NR_add_key, __NR_request_key, __NR_keyctl},
    {AUDIT_ARCH_I386, 120, 435, 286, 287, 288},
};
#else
#define X32_BIT 0x40000000U
static const struct abi abis[] = {
    {AUDIT_ARCH_AARCH64, __NR_clone, __NR_clone3, __NR_add_key, __NR_request_key, __NR_keyctl},
    {AUDIT_ARCH_ARM, 120, 435, 309, 310, 311},
};
#endif

enum { N_ABIS = sizeof abis / sizeof abis[0], MAX_CODE = 64 };

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

/* The rules of one system call table; the number is loaded. */
static void rules(struct program *p, const struct abi *abi, int nested)
{
    const uint32_t absent = SECCOMP_RET_ERRNO | ENOSYS, refused = SECCOMP_RET_ERRNO | EPERM;
    emit(p, BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    answer(p, absent);
    answer_if(p, abi->add_key, absent);
    answer_if(p, abi->request_key, absent);
    answer_if(p, abi->keyctl, absent);
    if (!nested) {
        answer_if(p, abi->clone3, absent);
        emit(p, BPF_JMP | BPF_JEQ | BPF_K, abi->clone, 0, 3);
        /* The kernel takes the low 32 bits; both machines are little-endian. */
        load(p, offsetof(struct seccomp_data, args[0]));
        emit(p, BPF_JMP | BPF_JSET | BPF_K, CLONE_PARENT, 0, 1);
        answer(p, refused);
    }
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
    answer(&p, SECCOMP_RET_ERRNO | ENOSYS); /* a table that we don't know */
    struct sock_fprog program = {.len = p.n, .filter = p.code};
    return sys_seccomp(SECCOMP_SET_MODE_FILTER, 0, &program);
}
