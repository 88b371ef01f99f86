/* job.h: one spawn, as all its processes share it: the caller's side, the mediator, the init and the command. */
#ifndef NSBOX_JOB_H
#define NSBOX_JOB_H

#include "clone.h"
#include "kernel/message.h"
#include "root/ops.h"

/* Work space of one spawn, borrowed from Python. */
enum { MEDIATOR_STACK = 65536, INIT_STACK = 16384, COMMAND_STACK = 16384, HELPER_STACK = 16384 };

enum gate { GATE_CLOSED, GATE_OPEN, GATE_ABORT };
enum mediator { MEDIATOR_GONE, MEDIATOR_WORKS, MEDIATOR_HAS_SPOKEN };
enum made { MADE_NOTHING, MADE_PROC, MADE_NET };
enum userns2 { USERNS2_NONE, USERNS2_ENTERED, USERNS2_MAPPED };
enum { MAX_PROCS = 8 };  /* ops that mount a procfs */
enum { MAX_SHARES = 4 }; /* file systems that the command may make for the mediator */

/* A word that may alias any type. */
typedef uint64_t __attribute__((may_alias)) any_word;

/* A file system that the mediator or the command makes, whichever gets to it first. */
struct share {
    uint32_t state; /* futex: enum share_state */
    int fd;         /* a detached mount, or -errno */
};

struct job {
    const nsbox_request *req;
    nsbox_result *res;
    struct builder b;
    int lifted[NSBOX_MAX_LIFTED];
    struct {
        uint8_t *mediator, *init, *command, *helper; /* their tops */
    } stacks;

    int caller;                  /* its pid */
    sys_sigset mask;             /* its signal mask, which the command gets back */
    unsigned umask;              /* its umask */
    int lifeline;                /* pidfd of it */
    struct arch_context context; /* of the caller, to which a command with PREEXEC returns */

    uint32_t mediator;                 /* futex: enum mediator; cleared by the kernel when it has ended */
    uint32_t gate;                     /* futex: enum gate; the command looks paths up when it is open */
    int setup_pipe[2];                 /* ends when the mediator has gone; carries a byte: enum nsbox_told */
    int parked_pipe[2];                /* the same if it belongs to the caller: its descriptors, or -1 */
    int kept_pair[2];                  /* sockets by which what is kept reaches the caller: its end first; or -1 */
    struct sharer helper, map_program; /* of userns2.c and maps.c; pidns_below.c has the second too */

    struct {
        uint32_t tid; /* cleared by the kernel when the init has executed or died */
        int pidfd;    /* the mediator's */
        int says[2];  /* pipe: nsbox_word */
        int is_up;
        int error; /* why it didn't come up, or 0 */
    } init;

    struct {
        uint32_t tid; /* cleared by the kernel when the command has executed or died */
        int is_made;
        int has_handlers;         /* it begins with the caller's signal handlers */
        int own[5 + MAX_PROCS];   /* the set-up's descriptors that the command has too */
        int devnull;              /* for its stdio, or -1 */
        const nsbox_place *place; /* where it starts, when there was a choice */
        int is_watched;           /* the caller ignores SIGCHLD, and wants a pidfd */
        uint32_t is_open;         /* futex: the caller has tried to open that pidfd */
    } command;

    struct {
        uint32_t made;        /* futex: enum made */
        int procs[MAX_PROCS]; /* detached mounts of procfs, or -errno */
        unsigned n_procs;     /* how many are used */
        struct share shares[MAX_SHARES];
        unsigned n_shares; /* how many the mediator has reached */
        uint32_t cpu;      /* the mediator's processor, when it made the command */
    } parallel;

    struct {
        int error; /* 0 when the net namespace is ready, or -errno */
        uint32_t step;
        int32_t op;           /* the op that it is for, or -1 */
        int fd;               /* the init's net namespace, where that is joined first, or -1 */
        int is_joined;        /* the mediator is in it, and so the command will be */
        int settings;         /* /proc/sys/net while there is no lo, or -1 */
        uint32_t lo_is_taken; /* 1 when the init or the mediator has begun to bring lo up */
        int answer[2];        /* the relay's: the first end is ours, the second goes to it; -1 when closed */
    } net;

    struct {
        int error; /* of the helper that writes them */
        uint32_t step;
        uint32_t are_written; /* futex: with NSBOX_HOLD_MAPS */
    } maps;

    struct {
        uint32_t state; /* futex: enum userns2 */
        int fd;         /* the command's last user namespace, where that is made for it before, or -1 */
        int error;      /* of the helper that writes its maps */
        uint32_t step;
    } userns2;
};

static inline struct job *job_of(struct builder *b)
{
    return (struct job *)(void *)((char *)b - offsetof(struct job, b));
}

/* The command sleeps on the mediator's word, which also changes when no process is left to open the gate. */
static inline void set_gate(struct job *j, enum gate gate)
{
    __atomic_store_n(&j->gate, gate, __ATOMIC_RELEASE);
    sys_futex_wake(&j->gate);
    __atomic_store_n(&j->mediator, MEDIATOR_HAS_SPOKEN, __ATOMIC_RELEASE);
    sys_futex_wake(&j->mediator);
}

/* Is there an init of ours? Without a pid namespace of its own a sandbox has none; and the command itself may be pid
 * 1. */
static inline int has_init(const struct job *j)
{
    return (j->req->namespaces & CLONE_NEWPID) && !(j->req->flags & NSBOX_AS_INIT);
}

/* Is the sandbox's pid namespace below one that the caller named? */
static inline int is_below(const nsbox_request *r)
{
    return r->pid_fd >= 0 && r->namespaces & CLONE_NEWPID;
}

/* The word that the kernel clears when pid 1 has executed or died. */
static inline uint32_t *init_word(struct job *j)
{
    return j->req->flags & NSBOX_AS_INIT ? &j->command.tid : &j->init.tid;
}

/* Is the root a copy of a kept tree? */
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

/* Is it to be shown to the relay, which makes its side of it? */
static inline int wants_relay(const nsbox_request *r)
{
    return r->relay_fd >= 0 && !is_parked(r);
}

/* The capabilities that the command could ever have, at most. */
static inline uint64_t bounding_set(const nsbox_request *r)
{
    return r->caps ? r->caps->bounding : r->flags & NSBOX_MAP_ROOT && r->uid == 0 ? 1ULL << CAP_SETFCAP : 0;
}

/* Those that pid 1 of a session keeps, which its commands don't get. */
static inline uint64_t kept_caps(const nsbox_request *r)
{
    return r->keeps_caps ? NSBOX_KEPT_CAPS : 0;
}

/* Has the caller ended? */
static inline int caller_is_gone(const struct job *j)
{
    static const int64_t at_once[2] = {0, 0};
    struct pollfd fd = {.fd = j->lifeline, .events = POLLIN};
    return sys_ppoll(&fd, 1, at_once) > 0;
}

/* Is the command a copy of the caller's memory? A pid 1 never is: it shares our memory, as it is made first. */
static inline int forks(const nsbox_request *r)
{
    return r->flags & NSBOX_FORK_COMMAND && !(r->flags & NSBOX_AS_INIT);
}

static inline int open_pidfd(int pid)
{
    return move_high(sys_pidfd_open(pid));
}

/* Records where a child gave up. The first error wins, also between two children. */
static inline void report(nsbox_result *res, int error, uint32_t step, int32_t op)
{
    int32_t none = 0;
    if (!__atomic_compare_exchange_n(&res->error, &none, -error, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return;
    res->step = step;
    res->op = op;
}

/* Does the mediator join the net namespace before there is a command? Joining it through a pidfd requires permission
 * to look at the init: power over the user namespace that its memory belongs to. Before the init's exec, that is the
 * caller's, over which a process in a joined user namespace has no power. After the exec, it is the image's, which may
 * be an outer one if its ids mean nothing in the joined one. */
static inline int joins_net_first(const struct job *j)
{
    int is_foreign = j->req->user_fd >= 0 || is_below(j->req);
    return is_foreign && makes_net(j->req) && has_init(j) && !is_warm(j->req) && !has_no_command(j->req);
}

/* Does the command enter a second user namespace? In a copy of a kept tree the last one exists already, and is
 * joined before everything else. */
static inline int has_second_userns(const nsbox_request *r)
{
    return (r->uid_map2 || r->user2_fd >= 0) && !is_warm(r);
}

static inline int needs_root_first(const nsbox_request *r)
{
    int is_early = has_second_userns(r) || r->flags & (NSBOX_FORK_COMMAND | NSBOX_NO_USERNS);
    return !(r->flags & NSBOX_PLAIN) &&
           (is_early || r->hold_fd >= 0); /* the root is shown to the holder of the request */
}

/* fds.c */
int take_descriptors(struct job *j, int32_t *op); /* at the start: checks those of the request, and makes room */
int open_devnull(struct job *j);
int close_unneeded(struct job *j);
void remember_own(struct job *j);
int stdio(const struct job *j);
int descriptors(struct job *j); /* closes what isn't 0..2 or in pass_fds; 0 or -errno */
void close_own(struct job *j);  /* closes what the set-up has opened, before the caller's code or its program runs */
void close_own_places(struct job *j);

/* init.c */
int execute_init(int lifeline, int setup, int says, int image); /* only returns on error; with its own table */

/* hold.c */
int hold(struct job *j, int is_command, uint32_t *step);

/* parallel.c */
int precedes_init(const nsbox_request *r);
int publish(struct job *j, enum made what);
void make_procs(struct job *j);
int help_set_up(struct job *j);
int await_made(struct job *j, enum made what);
int new_fs(struct builder *b, const nsbox_op *op);
void move_away(int pid, uint32_t cpu);

#endif
