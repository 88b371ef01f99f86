/* job.h: what the caller's side (spawn.c), the mediator, the init and the command share. */
#ifndef NSBOX_JOB_H
#define NSBOX_JOB_H

#include "root/ops.h"

/* Work space of one spawn, borrowed from Python. */
enum { MEDIATOR_STACK = 65536, INIT_STACK = 16384, COMMAND_STACK = 16384, HELPER_STACK = 16384 };

enum gate { GATE_CLOSED, GATE_OPEN, GATE_ABORT };
enum mediator { MEDIATOR_GONE, MEDIATOR_WORKS, MEDIATOR_HAS_SPOKEN };
enum made { MADE_NOTHING, MADE_PROC, MADE_NET };
enum userns2 { USERNS2_NONE, USERNS2_ENTERED, USERNS2_MAPPED };
enum { MAX_PROCS = 8 };  /* ops that mount a procfs */
enum { MAX_SHARES = 4 }; /* file systems that the command may make for the mediator */

/* A word of what has another type. */
typedef uint64_t __attribute__((may_alias)) any_word;

/* A process in the caller's memory. */
struct sharer {
    int pid;
    uint32_t tid; /* not 0 as long as it is there: see await_exec() */
};

/* A file system that the mediator or the command makes, whoever comes to it first. */
struct share {
    uint32_t state; /* futex: enum share_state */
    int fd;         /* a detached mount, or -errno */
};

struct job {
    const nsbox_request *req;
    nsbox_result *res;
    uint8_t *mediator_stack, *init_stack, *command_stack, *helper_stack; /* their tops */
    int caller;                                                          /* its pid */
    sys_sigset mask;      /* its signal mask, to be given back to the command */
    unsigned umask;       /* its umask */
    int lifeline;         /* pidfd of it */
    int said[2];          /* of the init: see nsbox_word */
    int setup_pipe[2];    /* ends when the mediator has gone; a byte in it: enum nsbox_told */
    int answer[2];        /* of the relay's: the first end is ours, the second goes to it; -1 when closed */
    int parked_pipe[2];   /* the same, when it is the caller's: its descriptors, or -1 */
    uint32_t mediator;    /* futex: enum mediator; cleared by the kernel when it has ended */
    uint32_t init_tid;    /* cleared by the kernel when the init has executed or died */
    uint32_t made;        /* futex: enum made */
    int init_pidfd;       /* the mediator's */
    int procs[MAX_PROCS]; /* detached mounts of procfs, or -errno */
    struct share shares[MAX_SHARES];
    unsigned n_shares; /* how many the mediator has come to */
    unsigned n_procs;  /* how many are used */
    int init_net;      /* 0 when the net namespace is ready, or -errno */
    uint32_t init_net_step;
    int32_t init_net_op;  /* the op that it is for, or -1 */
    uint32_t cpu;         /* the mediator's processor, when it made the command */
    int net_fd;           /* the init's net namespace, where that is joined first, or -1 */
    int in_net;           /* the mediator is in it, and so the command will be */
    int net_settings;     /* /proc/sys/net while there is no lo, or -1 */
    uint32_t lo_is_taken; /* 1 when the init or the mediator has begun to bring lo up */
    int devnull;          /* for stdio, or -1 */
    int init_up;
    int command_made;
    int has_handlers;                  /* the command begins with the caller's signal handlers */
    int own[5 + MAX_PROCS];            /* the set-up's descriptors that the command has as well */
    uint32_t command_tid;              /* as init_tid, for the command */
    uint32_t gate;                     /* futex: enum gate; the command looks paths up when it is open */
    int init_error;                    /* why the init didn't come up, or 0 */
    struct sharer helper, map_program; /* identity.c, below.c */
    struct arch_context context;       /* of the caller, to which a command with PREEXEC returns */
    int map_error;                     /* the map helper's */
    uint32_t map_step;
    uint32_t has_maps; /* futex: with NSBOX_HOLD_MAPS, they are written */
    uint32_t userns2;  /* futex: enum userns2 */
    int userns2_fd;    /* the command's last user namespace, where that is made for it before, or -1 */
    int map2_error;
    uint32_t map2_step;
    int watches;              /* the caller ignores SIGCHLD, and wants the command's pidfd */
    uint32_t watched;         /* futex: it has tried to open that */
    const nsbox_place *place; /* where the command starts, when there was a choice */
    int lifted[NSBOX_MAX_LIFTED];
    struct builder b;
};

static inline struct job *job_of(struct builder *b)
{
    return (struct job *)(void *)((char *)b - offsetof(struct job, b));
}

/* The command sleeps on the other word, which also changes when nobody is left to open the gate. */
static inline void set_gate(struct job *j, enum gate gate)
{
    __atomic_store_n(&j->gate, gate, __ATOMIC_RELEASE);
    sys_futex_wake(&j->gate);
    __atomic_store_n(&j->mediator, MEDIATOR_HAS_SPOKEN, __ATOMIC_RELEASE);
    sys_futex_wake(&j->mediator);
}

/* The mediator: builds the sandbox, then creates the init and the command, and exits. */
void mediator(void *job);

/* NSBOX_PLAIN: the command, from its first moment. */
void plain_command(void *job);

/* Close what the set-up has opened, before the caller's code or its program runs. */
void close_own(struct job *j);
void close_own_places(struct job *j);

/* signals.c */
void default_signals(const struct job *j);
void unblock_signals(const struct job *j);
int death_signal(const struct job *j);
int death_signal_after_preexec(const struct job *j);
int ignores_children(void);
void await_watch(struct job *j);
void watch_command(struct job *j);

/* Close what isn't 0..2 or in pass_fds; 0 or -errno. */
int descriptors(struct job *j);

/* Is there an init of ours? Without a pid namespace of its own, a sandbox has none; and the command may be it. */
static inline int has_init(const struct job *j)
{
    return (j->req->namespaces & CLONE_NEWPID) && !(j->req->flags & NSBOX_AS_INIT);
}

/* Is the sandbox's pid namespace below one that the caller has given? */
static inline int is_below(const nsbox_request *r)
{
    return r->pid_fd >= 0 && r->namespaces & CLONE_NEWPID;
}

/* The word that the kernel clears when pid 1 has executed or died. */
static inline uint32_t *init_word(struct job *j)
{
    return j->req->flags & NSBOX_AS_INIT ? &j->command_tid : &j->init_tid;
}

/* Is the root a copy of a template's? */
static inline int is_warm(const nsbox_request *r)
{
    return r->template_plan != 0;
}

/* Is everything but the command there, parked? */
static inline int is_parked(const nsbox_request *r)
{
    return r->park_fd >= 0;
}

/* Does the command's stdio want the null device? */
static inline int wants_devnull(const nsbox_request *r)
{
    return r->stdin_fd == NSBOX_DEVNULL || r->stdout_fd == NSBOX_DEVNULL || r->stderr_fd == NSBOX_DEVNULL;
}

/* Is there to be no command? */
static inline int has_no_command(const nsbox_request *r)
{
    return (r->flags & (NSBOX_TEMPLATE | NSBOX_PARK)) != 0;
}

/* Is a net namespace to be made? */
static inline int makes_net(const nsbox_request *r)
{
    return (r->namespaces & CLONE_NEWNET) && !is_parked(r);
}

/* Is that one to be shown to the relay, who makes its side of it? */
static inline int wants_relay(const nsbox_request *r)
{
    return r->relay_fd >= 0 && !is_parked(r);
}

/* The most that the command may ever have of capabilities. */
static inline uint64_t bounding_set(const nsbox_request *r)
{
    return r->caps ? r->caps->bounding : r->flags & NSBOX_MAP_ROOT && r->uid == 0 ? 1ULL << CAP_SETFCAP : 0;
}

/* Has the caller ended? */
static inline int caller_is_gone(const struct job *j)
{
    static const int64_t at_once[2] = {0, 0};
    struct pollfd fd = {.fd = j->lifeline, .events = POLLIN};
    return sys_ppoll(&fd, 1, at_once) > 0;
}

/* A pid 1 is always one of those who share our memory: it was there first. */
static inline int forks(const nsbox_request *r)
{
    return r->flags & NSBOX_FORK_COMMAND && !(r->flags & NSBOX_AS_INIT);
}

/* child.c */
int after_op(struct builder *b);
int create_command(struct job *j);
int close_unneeded(struct job *j);

/* identity.c */
int enter_namespaces(struct job *j);
enum { MAPS_DENY = 1, MAPS_PATIENT = 2 };
static inline unsigned how_to_map(const nsbox_request *r)
{
    return (r->flags & NSBOX_DENY_SETGROUPS ? MAPS_DENY : 0U) | (r->kernel_uid ? MAPS_PATIENT : 0U);
}
int write_maps(int dir, const char *path, const char *uids, const char *gids, unsigned how, uint32_t *step);
int limit_userns(struct job *j);
int limit_inotify(struct job *j);
int start_map2_helper(struct job *j);
void await_map2_helper(struct job *j);
int enter_second_userns(struct job *j, uint32_t *step);
int check_no_userns(const nsbox_request *r, uint32_t *step);

/* kernel_id.c */
enum { LOOKS = 15000 };
void pause_look(int look);
int take_kernel_ids(struct job *j);
void restore_dumpable(const struct job *j, int mediator);
void share_pipes(const nsbox_request *r);

/* idmap.c */
int open_sources(struct job *j, int32_t *at);

/* tell.c */
int send_fds(int socket, const int *fds, unsigned n);
/* Is the net namespace joined by the mediator, before there is a command? To join it by a pidfd one must be allowed to look
 * at the init, with power over the user namespace of its memory: before its exec the caller's, where a given one has
 * none; after it that of its image, which may be an outer one if the ids mean nothing in the given one. */
static inline int joins_net_first(const struct job *j)
{
    int is_foreign = j->req->user_fd >= 0 || is_below(j->req);
    return is_foreign && makes_net(j->req) && has_init(j) && !is_warm(j->req) && !has_no_command(j->req);
}

int hold(struct job *j, int is_command, uint32_t *step);

/* beside.c */
int precedes_init(const nsbox_request *r);
int publish(struct job *j, enum made what);
void make_procs(struct job *j);
int help_set_up(struct job *j);
int await_made(struct job *j, enum made what);
int new_fs(struct builder *b, const nsbox_op *op);
void move_away(int pid, uint32_t cpu);

/* below.c */
int clone_init_below(struct job *j, unsigned long flags, int *number);

/* init_start.c */
long clone_init(struct job *j, unsigned long flags, int *told);
int init_start(struct job *j);
int init_is_up(struct job *j);
int init_await(struct job *j);
int init_failed(const struct job *j);
void init_await_leave(struct job *j);
int init_new_proc(struct builder *b);

/* init_net.c */
int make_net(struct job *j);
int make_net_early(struct job *j);
int net_without_init(struct job *j, int32_t *op);
int init_await_net(struct job *j);
int init_join_net(struct job *j, uint32_t *step, int32_t *op);
int init_join_net_first(struct job *j, int32_t *op);
int init_leaves_lo(struct job *j);
int init_finish_net(struct job *j, int32_t *op);
int own_net(void);

/* relay.c */
int relay_prepare(struct job *j);
int relay_show(struct job *j);
int relay_await(struct job *j, int32_t *op);

/* template.c */
int template_prepare(struct job *j);
int template_check(struct job *j);
int template_finish(struct job *j, int32_t *op);
int park(struct job *j, int32_t *op);
int make_userns2(struct job *j);

/* landlock.c */
int landlock_confine(const nsbox_request *r, uint32_t *step, int32_t *at);

/* privileges.c */
int limit_bounding_set(uint64_t keep, int plain, uint32_t *step);
int set_ids(const struct job *j, uint32_t *step);
int install_filters(const nsbox_request *r, uint32_t from, uint32_t to);
int install_early_filters(const nsbox_request *r, uint32_t *step);
int set_limits(const nsbox_request *r);
int limit_core(const nsbox_request *r, uint32_t *step);
void limit_own_core(void);
int drop_capabilities(const nsbox_request *r, uint32_t *step);

/* command.c */
void command(void *job);
int needs_root_first(const nsbox_request *r);
_Noreturn void command_after_preexec(struct job *j, int failed);

/* A descriptor from 3 up in place of one that may be lower, or -errno. */
static inline int move_high(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int high = sys_dupfd_cloexec(fd, 3);
    sys_close(fd);
    return high;
}

extern const char nsbox_syscall_table[];
extern const unsigned char nsbox_init_image[];
extern const unsigned int nsbox_init_image_len;
extern const unsigned char nsbox_session_image[];
extern const unsigned int nsbox_session_image_len;

/* Records where a child gave up. The first error stays, also between two children. */
static inline void report(nsbox_result *res, int error, uint32_t step, int32_t op)
{
    int32_t none = 0;
    if (!__atomic_compare_exchange_n(&res->error, &none, -error, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return;
    res->step = step;
    res->op = op;
}

/* Waits until the child whose CLONE_CHILD_CLEARTID word this is has left our memory, by exec or exit: true then, false
 * after ten milliseconds. The kernel can fail to write the word of a process that is being killed (it gives up a page
 * fault then), so whoever waits on looks whether the process is there at all. */
static inline int await_exec(uint32_t *tid)
{
    static const int64_t ten_ms[2] = {0, 10000000};
    uint32_t value = __atomic_load_n(tid, __ATOMIC_ACQUIRE);
    if (value)
        sys_futex_wait(tid, value, ten_ms);
    if (__atomic_load_n(tid, __ATOMIC_ACQUIRE))
        return 0;
    sys_futex_wake(tid); /* the kernel wakes one of those who wait */
    return 1;
}

/* struct clone_args of the kernel, as far as the cgroup (Linux 5.7). */
struct clone_args_ {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};

/* What else clone3(2) is told: where it writes the pid, and the word that it clears at the end; a cgroup's descriptor. */
struct clone_more {
    int *parent_tid;
    uint32_t *child_tid;
    int cgroup;
};

#define INTO_CGROUP 0x200000000ULL /* CLONE_INTO_CGROUP */
#define CLEAR_SIGHAND                                                                                                  \
    0x100000000ULL /* CLONE_CLEAR_SIGHAND (Linux 5.5): handlers become the default, nothing else does */

/* As arch_clone(), with what only clone3(2) takes: handlers that are cleared in one go, or another cgroup from the first
 * moment, since moving a process would wait for a lock that all forks of the machine share. */
static inline long clone_by_args(uint64_t flags, uint8_t *top, const struct clone_more *more, void (*fn)(void *),
                                 void *arg)
{
    enum { BELOW = 4096 }; /* of its stack, as much as the kernel is told about */
    void **sp = (void **)(void *)top;
    *--sp = arg;
    *--sp = (void *)fn;
    struct clone_args_ args;
    uint64_t *words = (uint64_t *)(void *)&args;
    for (size_t i = 0; i < sizeof args / sizeof *words; i++) /* no initializer: it could become a call of memset */
        words[i] = 0;
    args.flags = flags;
    args.stack = (uint64_t)(uintptr_t)sp - BELOW;
    args.stack_size = BELOW;
    args.parent_tid = (uint64_t)(uintptr_t)more->parent_tid;
    args.child_tid = (uint64_t)(uintptr_t)more->child_tid;
    if (flags & INTO_CGROUP)
        args.cgroup = (uint64_t)more->cgroup;
    return arch_clone_raw(435, (long)&args, sizeof args, 0, 0); /* clone3(2) */
}

static inline long clone_into_cgroup(unsigned long flags, uint8_t *top, int cgroup, void (*fn)(void *), void *arg)
{
    const struct clone_more more = {.cgroup = cgroup};
    return clone_by_args(flags | INTO_CGROUP, top, &more, fn, arg);
}

static inline long clone_sharer(struct sharer *s, unsigned long flags, uint8_t *top, void (*fn)(void *), void *arg)
{
    s->tid = 1;
    long pid = arch_clone(flags | CLONE_VM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, top, &s->pid,
                          (int *)(void *)&s->tid, fn, arg);
    if (pid < 0)
        s->tid = 0;
    return pid;
}

#endif
