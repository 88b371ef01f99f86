/* test_guard.c: each rule of the filter against what the kernel would ask it, by an interpreter of the few instructions
 * that it is made of. The numbers here are written down from the kernel's tables, independently of guard.c's. */
#include "abi.h"
#include "check.h"
#include "guard.h"

#include <asm/unistd.h>
#include <errno.h>
#include <string.h>

#include <linux/audit.h>
#include <linux/seccomp.h>

enum { ALLOW = 0, EVERYTHING = 1024 };

/* 0 for allowed, else the errno. */
static int ask(const struct guard *g, uint32_t arch, uint32_t nr, uint64_t a, uint64_t b)
{
    struct seccomp_data data = {.nr = (int)nr, .arch = arch, .args = {a, b}};
    uint32_t word = 0;
    for (unsigned at = g->first; at < GUARD_MAX_CODE; at++) {
        const struct sock_filter *i = &g->code[at];
        switch (i->code) {
        case BPF_LD | BPF_W | BPF_ABS:
            CHECK((i->k & 3) == 0 && i->k + 4 <= sizeof data);
            memcpy(&word, (const char *)&data + i->k, sizeof word);
            break;
        case BPF_JMP | BPF_JEQ | BPF_K:
            at += word == i->k ? i->jt : i->jf;
            break;
        case BPF_JMP | BPF_JGE | BPF_K:
            at += word >= i->k ? i->jt : i->jf;
            break;
        case BPF_JMP | BPF_JSET | BPF_K:
            at += word & i->k ? i->jt : i->jf;
            break;
        case BPF_RET | BPF_K:
            if (i->k == SECCOMP_RET_ALLOW)
                return ALLOW;
            CHECK((i->k & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_ERRNO);
            return (int)(i->k & SECCOMP_RET_DATA);
        default:
            CHECK(!"an instruction that isn't expected");
            return -1;
        }
    }
    CHECK(!"fell off the end");
    return -1;
}

struct table {
    uint32_t arch;
    uint32_t clone, clone3, unshare, ptrace, keys[3], fcntl[2], of_pid[5], setpriority, ioprio_set;
};

#if defined(__x86_64__)
static const struct table tables[] = {
    {AUDIT_ARCH_X86_64, 56, 435, 272, 101, {248, 249, 250}, {72, 72}, {142, 144, 203, 302, 314}, 141, 251},
    {AUDIT_ARCH_I386, 120, 435, 310, 26, {286, 287, 288}, {55, 221}, {154, 156, 241, 340, 351}, 97, 289},
};
#else
static const struct table tables[] = {
    {AUDIT_ARCH_AARCH64, 220, 435, 97, 117, {217, 218, 219}, {25, 25}, {118, 119, 122, 261, 274}, 140, 30},
    {AUDIT_ARCH_ARM, 120, 435, 337, 26, {309, 310, 311}, {55, 221}, {154, 156, 241, 369, 380}, 97, 314},
};
#endif

static const uint64_t high = 0x100000000ULL; /* the kernel doesn't look at this half, so the filter mustn't */
static const uint64_t parent = 0x8000, newuser = 0x10000000, sigchld = 17;

static void check_creation(const struct guard *g, const struct table *t, uint32_t flags)
{
    int nested = (flags & NSBOX_NESTED) != 0, no_userns = (flags & NSBOX_NO_USERNS) != 0;
    CHECK(ask(g, t->arch, t->clone, sigchld, 0) == ALLOW);
    CHECK(ask(g, t->arch, t->clone, sigchld | parent, 0) == (nested ? ALLOW : EPERM));
    CHECK(ask(g, t->arch, t->clone, sigchld | parent | high, 0) == (nested ? ALLOW : EPERM));
    CHECK(ask(g, t->arch, t->clone, sigchld | newuser, 0) == (no_userns ? EPERM : ALLOW));
    CHECK(ask(g, t->arch, t->unshare, newuser, 0) == (no_userns ? EPERM : ALLOW));
    CHECK(ask(g, t->arch, t->unshare, newuser | 0x20000 | high, 0) == (no_userns ? EPERM : ALLOW));
    CHECK(ask(g, t->arch, t->unshare, 0x20000, 0) == ALLOW);
    CHECK(ask(g, t->arch, t->clone3, 0, 0) == (nested && !no_userns ? ALLOW : ENOSYS));
}

static void check_objects(const struct guard *g, const struct table *t)
{
    for (int i = 0; i < 3; i++)
        CHECK(ask(g, t->arch, t->keys[i], 0, 0) == ENOSYS);
    CHECK(ask(g, t->arch, t->ptrace, 0, 0) == EPERM);
    CHECK(ask(g, t->arch, t->ptrace, high, 0) == EPERM);
    CHECK(ask(g, t->arch, t->ptrace, 0x4206 /* PTRACE_SEIZE */, 3) == ALLOW);
    for (int i = 0; i < 2; i++) {
        CHECK(ask(g, t->arch, t->fcntl[i], 3, 1024) == EPERM);
        CHECK(ask(g, t->arch, t->fcntl[i], 3, 1040) == EPERM);
        CHECK(ask(g, t->arch, t->fcntl[i], 1024, 3) == ALLOW);
    }
    for (int i = 0; i < 5; i++) {
        CHECK(ask(g, t->arch, t->of_pid[i], 1, 0) == EPERM);
        CHECK(ask(g, t->arch, t->of_pid[i], high | 1, 0) == EPERM);
        CHECK(ask(g, t->arch, t->of_pid[i], 0, 1) == ALLOW);
    }
    CHECK(ask(g, t->arch, t->setpriority, 0, 1) == EPERM); /* PRIO_PROCESS */
    CHECK(ask(g, t->arch, t->setpriority, 1, 1) == EPERM); /* PRIO_PGRP */
    CHECK(ask(g, t->arch, t->setpriority, 2, 0) == EPERM); /* PRIO_USER */
    CHECK(ask(g, t->arch, t->setpriority, 0, 2) == ALLOW);
    CHECK(ask(g, t->arch, t->ioprio_set, 1, 1) == EPERM); /* IOPRIO_WHO_PROCESS */
    CHECK(ask(g, t->arch, t->ioprio_set, 3, 0) == EPERM); /* IOPRIO_WHO_USER */
    CHECK(ask(g, t->arch, t->ioprio_set, 1, 0) == ALLOW);
}

static int is_named(const struct table *t, uint32_t nr)
{
    const uint32_t *all = &t->clone;
    for (size_t i = 0; i < (sizeof *t - sizeof t->arch) / sizeof *all; i++)
        if (all[i] == nr)
            return 1;
    return 0;
}

static void check_all(uint32_t flags)
{
    struct guard g;
    guard_build(&g, flags);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        const struct table *t = &tables[i];
        check_creation(&g, t, flags);
        check_objects(&g, t);
        for (uint32_t nr = 0; nr < EVERYTHING; nr++)
            if (!is_named(t, nr))
                CHECK(ask(&g, t->arch, nr, 1, 1024) == ALLOW);
    }
    CHECK(ask(&g, tables[0].arch, 0x40000000U | 39, 0, 0) == ENOSYS); /* x32 */
    CHECK(ask(&g, tables[0].arch, ~0U, 0, 0) == ENOSYS);
    CHECK(ask(&g, AUDIT_ARCH_MIPS, 39, 0, 0) == ENOSYS);
}

int main(void)
{
    check_all(0);
    check_all(NSBOX_NO_USERNS);
    check_all(NSBOX_NESTED);
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
