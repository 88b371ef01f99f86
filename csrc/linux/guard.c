/* guard.c: the seccomp filter that no command is without, whatever its policy.
 *
 * The command is the caller's own child, shares its session keyring, and has the init's kernel uid: ways out that no
 * namespace covers. clone(2) with CLONE_PARENT would make children of the caller, for which the end of the sandbox
 * would wait, and PTRACE_TRACEME makes the caller a tracer, without whom a traced thread can't even die; keyctl(2)
 * reads the keyring (credentials), and with KEYCTL_SESSION_TO_PARENT replaces it; the scheduling calls could starve
 * pid 1, so that the sandbox outlives the command by minutes; a lease, which needs no write access, makes every open(2)
 * of the file on the host wait for 45 seconds. clone3(2), whose flags a filter can't see, doesn't exist, so that C
 * libraries use clone. Refusals are errors, never signals. A tool that makes such children itself (nsbox, runc) needs
 * NSBOX_NESTED.
 *
 * A spawn pays for each instruction that leads to "allowed": the kernel walks the filter for every number of both tables
 * when it is installed (seccomp_cache_prepare). Hence the binary search.
 */
#include "guard.h"
#include "child.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

/* What there is to know about a system call. */
enum rule { ABSENT, CLONE, CLONE3, FCNTL, IOPRIO, OF_PID, PRIORITY, TRACE, UNSHARE, N_RULES };

struct entry {
    uint32_t nr;
    enum rule rule;
};

#define X32_BIT 0x40000000U /* on x86_64 the third system call table: none of it */

/* Ascending by number. The numbers of the second table are those of the kernel's 32-bit ABI on the same machine. */
#if defined(__x86_64__)
static const uint32_t machines[] = {AUDIT_ARCH_X86_64, AUDIT_ARCH_I386};
static const struct entry native[] = {
    {__NR_clone, CLONE},
    {__NR_fcntl, FCNTL},
    {__NR_ptrace, TRACE},
    {__NR_setpriority, PRIORITY},
    {__NR_sched_setparam, OF_PID},
    {__NR_sched_setscheduler, OF_PID},
    {__NR_sched_setaffinity, OF_PID},
    {__NR_add_key, ABSENT},
    {__NR_request_key, ABSENT},
    {__NR_keyctl, ABSENT},
    {__NR_ioprio_set, IOPRIO},
    {__NR_unshare, UNSHARE},
    {__NR_prlimit64, OF_PID},
    {__NR_sched_setattr, OF_PID},
    {__NR_clone3, CLONE3},
};
static const struct entry compat[] = {
    {26, TRACE},    {55, FCNTL},   {97, PRIORITY}, {120, CLONE},  {154, OF_PID}, {156, OF_PID},
    {221, FCNTL},   {241, OF_PID}, {286, ABSENT},  {287, ABSENT}, {288, ABSENT}, {289, IOPRIO},
    {310, UNSHARE}, {340, OF_PID}, {351, OF_PID},  {435, CLONE3},
};
#else
static const uint32_t machines[] = {AUDIT_ARCH_AARCH64, AUDIT_ARCH_ARM};
static const struct entry native[] = {
    {__NR_fcntl, FCNTL},
    {__NR_ioprio_set, IOPRIO},
    {__NR_unshare, UNSHARE},
    {__NR_ptrace, TRACE},
    {__NR_sched_setparam, OF_PID},
    {__NR_sched_setscheduler, OF_PID},
    {__NR_sched_setaffinity, OF_PID},
    {__NR_setpriority, PRIORITY},
    {__NR_add_key, ABSENT},
    {__NR_request_key, ABSENT},
    {__NR_keyctl, ABSENT},
    {__NR_clone, CLONE},
    {__NR_prlimit64, OF_PID},
    {__NR_sched_setattr, OF_PID},
    {__NR_clone3, CLONE3},
};
static const struct entry compat[] = {
    {26, TRACE},    {55, FCNTL},   {97, PRIORITY}, {120, CLONE},  {154, OF_PID}, {156, OF_PID},
    {221, FCNTL},   {241, OF_PID}, {309, ABSENT},  {310, ABSENT}, {311, ABSENT}, {314, IOPRIO},
    {337, UNSHARE}, {369, OF_PID}, {380, OF_PID},  {435, CLONE3},
};
#endif

enum { N_NATIVE = sizeof native / sizeof native[0], N_COMPAT = sizeof compat / sizeof compat[0] };
_Static_assert(GUARD_MAX_CODE < 256, "jumps are of 8 bits");
_Static_assert((int)N_RULES <= (int)GUARD_MAX_RULES, "a place for each rule");

static unsigned prepend(struct guard *p, unsigned short code, uint32_t k)
{
    p->code[--p->first] = (struct sock_filter){code, 0, 0, k};
    return p->first;
}

static unsigned test(struct guard *p, unsigned short how, uint32_t k, unsigned yes, unsigned no)
{
    unsigned at = prepend(p, (unsigned short)(BPF_JMP | BPF_K | how), k);
    p->code[at].jt = (unsigned char)(yes - at - 1);
    p->code[at].jf = (unsigned char)(no - at - 1);
    return at;
}

static unsigned load(struct guard *p, size_t offset)
{
    return prepend(p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset);
}

/* The kernel takes the low 32 bits of these arguments; both machines are little-endian. */
static unsigned load_argument(struct guard *p, unsigned i)
{
    return load(p, offsetof(struct seccomp_data, args) + i * sizeof(uint64_t));
}

static unsigned refuse_if(struct guard *p, unsigned argument, unsigned short how, uint32_t k, unsigned otherwise)
{
    test(p, how, k, p->refuse, otherwise);
    return load_argument(p, argument);
}

/* setpriority(2) and its kin: the first argument says whether the second is a process, a group or a user. */
static unsigned refuse_init(struct guard *p, uint32_t user)
{
    unsigned process = refuse_if(p, 1, BPF_JEQ, 1, p->allow);
    return refuse_if(p, 0, BPF_JEQ, user, process); /* the init is of the same user */
}

static void write_rules(struct guard *p, uint32_t flags)
{
    uint32_t no_userns = flags & NSBOX_NO_USERNS ? CLONE_NEWUSER : 0;
    uint32_t no_clone = no_userns | (flags & NSBOX_NESTED ? 0 : CLONE_PARENT);
    p->allow = prepend(p, BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    p->absent = prepend(p, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    p->refuse = prepend(p, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    p->rules[ABSENT] = p->absent;
    p->rules[CLONE] = no_clone ? refuse_if(p, 0, BPF_JSET, no_clone, p->allow) : p->allow;
    p->rules[CLONE3] = no_clone ? p->absent : p->allow;
    unsigned lease = refuse_if(p, 1, BPF_JEQ, 1024 /* F_SETLEASE */, p->allow);
    p->rules[FCNTL] = refuse_if(p, 1, BPF_JEQ, 1040 /* F_SETDELEG, Linux 6.19: the same of directories */, lease);
    p->rules[IOPRIO] = refuse_init(p, 3 /* IOPRIO_WHO_USER */);
    p->rules[OF_PID] = refuse_if(p, 0, BPF_JEQ, 1, p->allow);
    p->rules[PRIORITY] = refuse_init(p, 2 /* PRIO_USER */);
    p->rules[TRACE] = refuse_if(p, 0, BPF_JEQ, 0 /* PTRACE_TRACEME */, p->allow);
    p->rules[UNSHARE] = no_userns ? refuse_if(p, 0, BPF_JSET, no_userns, p->allow) : p->allow;
}

/* A binary search for the number at hand. */
static unsigned search(struct guard *p, const struct entry *entries, unsigned n)
{
    if (n == 1)
        return test(p, BPF_JEQ, entries[0].nr, p->rules[entries[0].rule], p->allow);
    unsigned above = search(p, entries + n / 2, n - n / 2);
    unsigned below = search(p, entries, n / 2);
    return test(p, BPF_JGE, entries[n / 2].nr, above, below);
}

void guard_build(struct guard *p, uint32_t flags)
{
    p->first = GUARD_MAX_CODE;
    write_rules(p, flags);
    search(p, compat, N_COMPAT);
    unsigned foreign = load(p, offsetof(struct seccomp_data, nr));
    unsigned known = search(p, native, N_NATIVE);
    test(p, BPF_JGE, X32_BIT, p->absent, known);
    unsigned own = load(p, offsetof(struct seccomp_data, nr));
    unsigned other = test(p, BPF_JEQ, machines[1], foreign, p->absent); /* a table that we don't know */
    test(p, BPF_JEQ, machines[0], own, other);
    load(p, offsetof(struct seccomp_data, arch));
}

int guard_install(const nsbox_request *r)
{
    struct guard g;
    guard_build(&g, r->flags);
    struct sock_fprog program = {.len = (unsigned short)(GUARD_MAX_CODE - g.first), .filter = g.code + g.first};
    return sys_seccomp(SECCOMP_SET_MODE_FILTER, 0, &program);
}
