/* abi_session.h: the part of abi.h about a session: what its pid 1 is asked to do, and what it reports.
 *
 * A request is a message with descriptors: a file that holds an nsbox_entry and what it points to; a socket for the
 * answers; the write end of a pipe that the exec closes; then the descriptors that the command gets, in the order of
 * `targets`. STARTED arrives on the socket; a byte sent back lets the command go on. After that the pipe just ends,
 * or FAILED comes through it.
 */
#ifndef NSBOX_ABI_SESSION_H
#define NSBOX_ABI_SESSION_H

#include <stdint.h>

/* What pid 1 keeps where the sandbox has several ids: CAP_KILL, SETGID, SETUID and SYS_RESOURCE. See init/ids.c. */
#define NSBOX_KEPT_CAPS (1ULL << 5 | 1ULL << 6 | 1ULL << 7 | 1ULL << 24)

enum nsbox_entry_flag {
    NSBOX_ENTRY_NULL = 1, /* shifted by 0, 1, 2: that descriptor is /dev/null */
    NSBOX_ENTRY_SETSID = 8,
    NSBOX_ENTRY_CWD_OPTIONAL = 16, /* where cwd can't be entered, the command starts in the session's own */
    NSBOX_ENTRY_TERMINAL = 32,     /* with SETSID; shifted by 0, 1, 2: that descriptor is the new session's terminal */
    NSBOX_ENTRY_GROUPS = 256       /* its supplementary groups are set; otherwise it has pid 1's */
};

/* Offsets count from its start; arrays of them end in 0. */
typedef struct nsbox_entry {
    uint64_t size; /* with all that follows */
    uint64_t programs, argv, envp;
    uint64_t targets; /* of int32_t, ascending: the numbers that the descriptors get */
    uint64_t cwd;     /* or 0 */
    uint64_t groups;  /* of uint32_t, with ENTRY_GROUPS */
    uint32_t n_targets;
    uint32_t flags;
    int32_t umask; /* -1: the session's */
    int32_t pgid;  /* -1: none */
    uint32_t uid;  /* (uint32_t)-1: pid 1's effective one, as for gid */
    uint32_t gid;
    uint32_t n_groups;
    uint32_t reserved;
} nsbox_entry;

/* The name of a file for the output of background processes: this, a number and ".log". */
#define NSBOX_OUTPUT_NAME "/tmp/nsbox-output-"

/* The other requests: a message that isn't one byte, with a socket for the answer. SECRET, the first of all: the
 * number that lets it set marks, see init/started.c; and whether it has kept capabilities, see init/ids.c. IDS:
 * the uid (the lower half) and the gid that it has from now on, as effective ones alone. SEND: the process whose pidfd
 * comes along gets this signal; the caller may have no right to signal it. SIGNAL: every process with this mark gets this signal, or none
 * if it is 0; the answer is SIGNALLED. FREEZE: the same while all are stopped, so that no process forks and is
 * missed. END: every process but pid 1 gets SIGKILL; the answer's error is ESRCH if there is none. KEEP: what comes
 * through one or two pipes, whose read ends come along, goes into a file; the answer is KEPT. ROOT: the answer, MADE, comes with a descriptor (O_PATH) of the session's "/". MAKE: a new name, with the
 * commands' ids, see init/names.c; the directory's descriptor comes along, for MOVED a second one. The name, or both,
 * each with a NUL, follow the request. The answer is MADE, with a descriptor of a new file, open for writing. */
enum nsbox_kept { NSBOX_NOT_KEPT = -1 };
enum nsbox_asked {
    NSBOX_ASKED_SECRET = 1,
    NSBOX_ASKED_SIGNAL = 2,
    NSBOX_ASKED_KEEP = 3,
    NSBOX_ASKED_FREEZE = 4,
    NSBOX_ASKED_ROOT = 5,
    NSBOX_ASKED_MAKE = 6,
    NSBOX_ASKED_SEND = 7,
    NSBOX_ASKED_IDS = 8,
    NSBOX_ASKED_END = 9
};
enum nsbox_make { NSBOX_MAKE_FILE = 1, NSBOX_MAKE_DIRECTORY = 2, NSBOX_MAKE_MOVED = 3, NSBOX_MAKE_REMOVED = 4 };

typedef struct nsbox_asking {
    uint32_t what;
    int32_t
        signal; /* SECRET: 1: it has capabilities. KEEP: 1: into a file, 0: it is read and dropped. MAKE: enum nsbox_make */
    uint64_t mark; /* SECRET, IDS: that number. MAKE: the mode; MOVED: 1: RENAME_NOREPLACE; REMOVED: AT_REMOVEDIR */
} nsbox_asking;

enum nsbox_entry_said {
    NSBOX_ENTRY_STARTED = 1,
    NSBOX_ENTRY_FAILED = 2,
    NSBOX_ENTRY_ENDED = 3,
    NSBOX_ENTRY_SIGNALLED = 4,
    NSBOX_ENTRY_KEPT = 5,
    NSBOX_ENTRY_MADE = 6
};

typedef struct nsbox_told_entry {
    uint32_t what; /* STARTED: with the command's pidfd */
    int32_t error; /* FAILED, MADE: an errno; ENDED: the wait status */
    uint32_t step; /* FAILED: enum nsbox_step */
    uint32_t reserved;
    int64_t user_us, system_us, max_rss; /* ENDED: what the command and its children used; bytes */
    /* STARTED: the mark of all that the command starts, 0: it has none. SIGNALLED: how many unreaped processes have it.
     * KEPT: the number of the file, 0: there is none; NSBOX_NOT_KEPT: the pipes aren't read. */
    uint64_t mark;
} nsbox_told_entry;

#endif
