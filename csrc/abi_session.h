/* abi_session.h: the part of abi.h about a session: what its pid 1 is asked, and says.
 *
 * It is asked by a message with descriptors: a file that holds an nsbox_entry and what that leads to, a socket to be told
 * by, a pipe's write end that is closed by the exec, and those that the command gets, in the order of `targets`. By the
 * socket comes STARTED; a byte by it lets the command go on; then nothing through the pipe but its end, or FAILED. */
#ifndef NSBOX_ABI_SESSION_H
#define NSBOX_ABI_SESSION_H

#include <stdint.h>

enum nsbox_entry_flag {
    NSBOX_ENTRY_NULL = 1, /* shifted by 0, 1, 2: that descriptor is /dev/null */
    NSBOX_ENTRY_SETSID = 8,
    NSBOX_ENTRY_CWD_OPTIONAL = 16, /* where cwd can't be entered, the session's own is it */
    NSBOX_ENTRY_TERMINAL = 32      /* with SETSID; shifted by 0, 1, 2: that descriptor is the new session's terminal */
};

/* Offsets count from its start; arrays of them end in 0. */
typedef struct nsbox_entry {
    uint64_t size; /* with all that follows */
    uint64_t programs, argv, envp;
    uint64_t targets; /* of int32_t, ascending: the numbers that the descriptors get */
    uint64_t cwd;     /* or 0 */
    uint32_t n_targets;
    uint32_t flags;
    int32_t umask; /* -1: the session's */
    int32_t pgid;  /* -1: none */
} nsbox_entry;

/* Where what goes on in the background prints to: this, a number and ".log". */
#define NSBOX_OUTPUT_NAME "/tmp/nsbox-output-"

/* What else it is asked, by a message that isn't one byte, with a socket to be told by. SECRET: first of all, the number by
 * which it may set marks, see init/started.c. SIGNAL: all that has this mark gets this signal, or none if it is 0; then
 * comes SIGNALLED. FREEZE: the same while all are stopped, so that nobody forks and is missed. KEEP: what comes by one or two pipes, whose read ends come too, goes into a file; then comes KEPT. */
enum nsbox_kept { NSBOX_NOT_KEPT = -1 };
enum nsbox_asked { NSBOX_ASKED_SECRET = 1, NSBOX_ASKED_SIGNAL = 2, NSBOX_ASKED_KEEP = 3, NSBOX_ASKED_FREEZE = 4 };

typedef struct nsbox_asking {
    uint32_t what;
    int32_t signal; /* KEEP: 1 for a file, 0: what comes is only read */
    uint64_t mark;  /* SECRET: that number */
} nsbox_asking;

enum nsbox_entry_said {
    NSBOX_ENTRY_STARTED = 1,
    NSBOX_ENTRY_FAILED = 2,
    NSBOX_ENTRY_ENDED = 3,
    NSBOX_ENTRY_SIGNALLED = 4,
    NSBOX_ENTRY_KEPT = 5
};

typedef struct nsbox_told_entry {
    uint32_t what; /* STARTED: with the command's pidfd */
    int32_t error; /* FAILED: an errno; ENDED: the wait status */
    uint32_t step; /* FAILED: enum nsbox_step */
    uint32_t reserved;
    int64_t user_us, system_us, max_rss; /* ENDED: what the command and its children used; bytes */
    uint64_t
        mark; /* STARTED: of all that the command starts, 0: it has none; SIGNALLED: how many have it that aren't reaped;
                      KEPT: the number of the file, 0: there is none;
                      NSBOX_NOT_KEPT: the pipes aren't read */
} nsbox_told_entry;

#endif
