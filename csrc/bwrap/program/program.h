/* program.h: the program bwrap, from its command line to its exit status. It is freestanding, as the init is: one
 * thread, memory from mmap(2), no C library, so that it is the same on every system. The sandbox itself is made by the
 * core, by nsbox_spawn(), as all sandboxes of nsbox are. */
#ifndef NSBOX_BWRAP_PROGRAM_H
#define NSBOX_BWRAP_PROGRAM_H

#include "../line/line.h"
#include "abi.h"
#include "kernel/sys.h"
#include "kernel/sys_program.h"
#include "kernel/sys_session.h"

/* Who calls, as far as a sandbox depends on it. */
struct caller {
    uint32_t uid, gid, euid, egid;
    uint64_t effective, inheritable, bounding; /* capabilities */
    uint64_t known;                            /* all that the kernel has */
    const char *uid_map, *gid_map;             /* of its user namespace */
    bool is_kernel_root;                       /* it may write to /proc/sys */
};

/* An op of the plan, for messages and for encoding. code, flags and the rest: nsbox_op's. */
struct step {
    uint32_t code, flags, mode;
    int32_t fd;
    const char *dest;
    const uint8_t *src; /* a text with its NUL, data, or several texts */
    uint64_t src_len, size;
    uint32_t count;
    const nsbox_bwrap_op *op; /* of the line that it comes from; NULL: none */
};

struct program {
    const char *mark; /* main.c's */
    const char *name; /* argv[0] */
    const char *const *envp;
    nsbox_bwrap_line line;
    struct caller caller;
    struct list steps; /* struct step */
    const char *state; /* nsbox's own directory; "": there is none */
    nsbox_request request;
    bool has_failed; /* a message has been printed */
};

/* ---- main.c: messages. Each ends in NULL. */

void say(const char *text);
/* Prints "bwrap: " and the parts, with the syslog level that was asked for. Returns false. */
bool fail(struct program *p, const char *const *parts);
#define FAIL(p, ...) fail((p), (const char *const[]){__VA_ARGS__, NULL})
void *program_take(struct program *p, uint64_t n);
char *program_text(struct program *p, const char *const *parts);
#define JOIN(p, ...) program_text((p), (const char *const[]){__VA_ARGS__, NULL})
bool no_memory(struct program *p);
/* Ends this process by a signal. */
void die_of(int number);

/* ---- the way from the line to a request: each returns false if it has failed */

/* caller.c */
void caller_ask(struct program *p);
/* Does it run behind a seccomp filter? */
bool caller_is_filtered(struct program *p);
/* Is each descriptor open that is used for more than its contents? */
bool check_open(struct program *p);
uint64_t hexadecimal_after(const char *text);
/* Returns all of a file, with a NUL behind; NULL if it can't be read. */
char *file_text(struct program *p, const char *path, uint64_t *len);
/* Reads a descriptor to its end, and closes it from 3 up; 0 or -errno. */
int fd_contents(struct program *p, int fd, uint8_t **data, uint64_t *len);

/* sources.c: these return NULL if it has failed */

/* Returns the name that a source leads to; "" if it is optional and missing. It is resolved in this process: the child
 * that mounts it has other descriptors, so that a path through /proc/self, such as /dev/fd, would lead elsewhere there. */
const char *source_followed(struct program *p, const char *path, bool optional);
/* Returns nsbox's own directory of this user, by its name without links; "" if there is none. In there is the key of
 * commits: a command that has it could forge what a transaction leaves to be carried out. */
const char *source_of_state(struct program *p);
/* Is the path this one, or below it? Then what follows, without a slash at its begin; otherwise NULL. */
const char *path_below(const char *path, const char *above);

/* plan.c */
bool plan_steps(struct program *p);
bool plan_encode(struct program *p);

/* request.c */
bool request_isolation(struct program *p);
/* The filter of each of these sandboxes, made by tools/guard.py; the second one also keeps RLIMIT_CORE as it is. */
extern const uint8_t nsbox_bwrap_guard[], nsbox_bwrap_guard_of_core[];
extern const unsigned int nsbox_bwrap_guard_len, nsbox_bwrap_guard_of_core_len;

/* command.c */
bool request_command(struct program *p);

/* ---- watch.c: what watches the set-up, and what is told about the sandbox */

bool is_watched(const struct program *p);
bool watch_begin(struct program *p);
/* Takes over what nsbox_spawn() has left; false if something went wrong here. Then the command has ended. */
bool watch_started(struct program *p);
/* is_told_to_end: by a signal, so that it waits for no reader. */
void watch_ended(struct program *p, int status, bool is_told_to_end);

/* ---- wait.c */

/* Takes note of signals from now on. */
void catch_signals(void);
/* Signals end this process again. */
void leave_signals(void);
/* The first that came, or 0. */
int caught(void);
/* From now on each signal writes a byte to this descriptor; -1: to none. */
void wake_by(int fd);
/* Passes on signals until the command has ended. Returns its exit status; *ours: the signal that both got, or 0. */
int wait_for_command(struct program *p, int *ours);

/* ---- failure.c, usage.c */

/* Prints why a spawn has failed. */
void fail_spawn(struct program *p);
void usage(struct program *p, int fd);

#endif
