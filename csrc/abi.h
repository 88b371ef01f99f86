/* abi.h: the boundary between Python and the C core, in both directions: all structs, flags and steps, and the calls
 * that every system has. The calls of one system alone are in its calls.h; what a session's pid 1 is asked to do is
 * in abi_session.h, and what makes a branch of an interpreter in abi_branch.h.
 *
 * The C compiler reads this file, and so does cffi once lines that begin with '#' are removed. Python gets opcodes,
 * flags and steps from here; they are never typed again.
 *
 * Python owns every buffer and every descriptor named here. C borrows them for the length of one call, allocates
 * nothing, and closes only what it opened itself.
 */
#ifndef NSBOX_ABI_H
#define NSBOX_ABI_H

#include <stdint.h>

#include "abi_session.h"

/* ---- the plan: one contiguous blob -------------------------------------------------------
 * struct nsbox_plan, then nops * struct nsbox_op, then a pool of bytes. Offsets count from the
 * start of the blob; strings end in NUL inside it. plan.c trusts none of this. */

enum nsbox_plan_constants {
    NSBOX_MAGIC = 0x786f626e, /* "nbox", little-endian */
    NSBOX_VERSION = 1,
    NSBOX_MAX_LAYERS = 10, /* overlay layers: fsconfig(2) takes strings of at most 255 bytes */
    NSBOX_MAX_LIFTED = 48, /* mounts that are lifted in one plan */
    NSBOX_PATH_MAX = 4096
};

enum nsbox_opcode {
    NSBOX_OP_BIND = 1,
    NSBOX_OP_TMPFS = 2,
    NSBOX_OP_PROC = 3,
    NSBOX_OP_DEVPTS = 4,
    NSBOX_OP_MQUEUE = 5,
    NSBOX_OP_DIR = 6,
    NSBOX_OP_FILE = 7,
    NSBOX_OP_DATA = 8,
    NSBOX_OP_SYMLINK = 9,
    NSBOX_OP_REMOUNT_RO = 10,
    NSBOX_OP_CHMOD = 11,
    NSBOX_OP_OVERLAY = 12,
    NSBOX_OP_MASK = 13,
    NSBOX_OP_HOSTNAME = 14,
    NSBOX_OP_LOOPBACK = 15,
    NSBOX_OP_END = 16
};

enum nsbox_op_flag {
    NSBOX_RDONLY = 1,   /* BIND, DATA: read-only */
    NSBOX_DEVICES = 2,  /* BIND: device nodes stay usable (no nodev) */
    NSBOX_OPTIONAL = 4, /* BIND: a missing source is no error. MASK: nor is a missing destination. For path rules too */
    NSBOX_FROM_FD = 8,  /* BIND: the source is op.fd */
    NSBOX_COVER = 16,   /* PROC: writable kernel settings become read-only */
    NSBOX_OVL_TMP = 32, /* OVERLAY: writes go to a tmpfs and are dropped */
    NSBOX_OVL_RO = 64,  /* OVERLAY: read-only */
    NSBOX_PROBE_TTY = 128, /* BIND: only when descriptor 1 of the caller is a terminal (/dev/console) */
    NSBOX_NOFOLLOW = 256,  /* BIND, OVERLAY, path rule: no symlink may be in a source path. MASK: in the destination */
    NSBOX_LIFTED = 512,    /* BIND: the source is number op.fd of all mounts lifted so far */
    NSBOX_FREEZE = 1024,   /* REMOUNT_RO: the file system at dst in the old root, by whichever mount it is written to */
    NSBOX_THAW = 2048,     /* REMOUNT_RO: the same, made writable again */
    NSBOX_COVER_SYS = 4096, /* PROC: settings that owners of namespaces may write (/proc/sys) become read-only */
    NSBOX_NESTS = 8192      /* PROC, with COVER: a sandbox inside may make its own */
};

typedef struct nsbox_plan {
    uint32_t magic;
    uint32_t version;
    uint32_t size; /* of the whole blob */
    uint32_t nops;
} nsbox_plan;

typedef struct nsbox_op {
    uint32_t code;
    uint32_t flags;
    uint32_t mode;  /* permission bits */
    int32_t fd;     /* BIND with NSBOX_FROM_FD or NSBOX_LIFTED */
    uint32_t src;   /* offset of: source path, link target, host name, data; OVERLAY: of `count` strings */
    uint32_t dst;   /* offset of: destination path */
    uint32_t count; /* FILE, DATA: bytes at src; OVERLAY: strings at src, the lower layers from the bottom up, then
                        * (neither TMP nor RO) the upper and the work directory; TMPFS, PROC: strings at src, the mounts
                        * below dst that are lifted before it is covered, for later BINDs; BIND: which of the request's
                        * idmaps the source is mapped by, counted from 1, or 0 */
    uint32_t reserved;
    uint64_t size; /* TMPFS: bytes, 0 for the kernel's default. BIND: 0, or the device that a directory must lie on, as
                    * nsbox_stamp has it */
} nsbox_op;

/* ---- one spawn ------------------------------------------------------------------------------ */

enum nsbox_stdio { NSBOX_DEVNULL = -2 };

enum nsbox_spawn_flag {
    NSBOX_CLOSE_FDS = 1,       /* descriptors from 3 up are closed, except pass_fds */
    NSBOX_RESTORE_SIGNALS = 2, /* SIGPIPE, SIGXFSZ to default */
    NSBOX_SETSID = 4,
    NSBOX_FORK_COMMAND = 8,    /* the command changes its kernel ids: never in the caller's memory */
    NSBOX_DENY_SETGROUPS = 16, /* write "deny" to /proc/self/setgroups before the gid map */
    NSBOX_MAP_BY_HELPER = 32,  /* maps of more than one id: written by a process of the parent namespace */
    NSBOX_ADOPT_INIT = 64,     /* the init becomes a child of the caller, since nobody else reaps it */
    NSBOX_SET_GROUPS = 128,
    NSBOX_CWD_OPTIONAL = 256, /* where cwd can't be entered, the command starts in "/" */
    NSBOX_DROP_GROUPS = 512,  /* the caller's supplementary groups are dropped before there is a user namespace */
    NSBOX_PREEXEC = 1024,     /* with FORK_COMMAND: nsbox_spawn() returns 1 in the command before it executes */
    NSBOX_SETSID_LAST = 2048, /* with PREEXEC: setsid(2) after it, unless it was done there */
    NSBOX_STAY = 4096,        /* the sandbox goes on after the command's end, until nothing runs in it */
    NSBOX_PLAIN = 8192,       /* no namespaces, root, or init: an ordinary child except for limits, filters, Landlock */
    NSBOX_UNCONFINED = 16384, /* with PLAIN: privileges stay, and there are no filters: it will confine itself */
    NSBOX_DIE_WITH_THREAD = 32768,    /* when the calling thread ends, so does the command (PR_SET_PDEATHSIG) */
    NSBOX_HOST_WRITES = 65536,        /* what an op creates or changes, it may create or change on the host too */
    NSBOX_OUTLIVE = 131072,           /* the sandbox isn't tied to the caller */
    NSBOX_AS_INIT = 262144,           /* the command itself is pid 1 */
    NSBOX_LIMIT_USERNS = 524288,      /* with a second user namespace: there can't be a third */
    NSBOX_NO_USERNS = 1048576,        /* unless the command can't make user namespaces, it doesn't start */
    NSBOX_SHELL = 2097152,            /* a program of no known format is a script for /bin/sh, as with execvp(3) */
    NSBOX_MAP2_BY_HELPER = 4194304,   /* the second maps hold more than one id */
    NSBOX_HOLD_MAPS = 8388608,        /* with a hold: the process that holds it writes the first maps */
    NSBOX_TEMPLATE = 16777216,        /* no command: the sandbox is kept for those with mnt_fd. See user_fd */
    NSBOX_PARK = 33554432,            /* no command: its init waits for one, which comes with park_fd */
    NSBOX_BY_FD = 67108864,           /* the program is the file that the command has as descriptor 2 */
    NSBOX_LIFELINE = 134217728,       /* macOS: a process of ours ends the command when the caller ends */
    NSBOX_LIFELINE_GROUP = 268435456, /* with LIFELINE: and its group; without STAY, at its own end too */
    NSBOX_BY_HELPER = 536870912,      /* macOS: the helper program confines and executes, as profile_fd says */
    NSBOX_MAP_ROOT = 1073741824       /* the command keeps CAP_SETFCAP: it may map its uid 0 again (Linux 5.12) */
};

/* Where a spawn stopped. */
enum nsbox_step {
    NSBOX_STEP_NONE = 0,
    NSBOX_STEP_PLAN = 1,     /* the blob is malformed */
    NSBOX_STEP_CLONE = 2,    /* no process for the mediator */
    NSBOX_STEP_LIFELINE = 3, /* no pidfd of the caller, or it is dead */
    NSBOX_STEP_UNSHARE = 4,  /* namespaces are refused */
    NSBOX_STEP_UID_MAP = 5,
    NSBOX_STEP_GID_MAP = 6,
    NSBOX_STEP_SETGROUPS = 7, /* writing /proc/self/setgroups */
    NSBOX_STEP_ROOT = 8,      /* the new root file system */
    NSBOX_STEP_SOURCE = 9,    /* an op: its source */
    NSBOX_STEP_DEST = 10,     /* an op: its destination doesn't resolve */
    NSBOX_STEP_CREATE = 11,   /* an op: its destination can't be made */
    NSBOX_STEP_HOST = 12,     /* an op: its destination would have to be made or changed on the host */
    NSBOX_STEP_FS = 13,       /* an op: a new file system */
    NSBOX_STEP_ATTR = 14,     /* an op: mount attributes */
    NSBOX_STEP_ATTACH = 15,   /* an op: the mount itself */
    NSBOX_STEP_WRITE = 16,    /* an op: contents */
    NSBOX_STEP_SET = 17,      /* an op: the host name, the interface, the mode */
    NSBOX_STEP_PIVOT = 18,
    NSBOX_STEP_SECOND_USERNS = 19,
    NSBOX_STEP_INIT = 20,    /* the sandbox's pid 1 */
    NSBOX_STEP_COMMAND = 21, /* no process for the command */
    NSBOX_STEP_STDIO = 22,
    NSBOX_STEP_CHDIR = 23,
    NSBOX_STEP_SESSION = 24,
    NSBOX_STEP_PGID = 25,
    NSBOX_STEP_RLIMIT = 26,
    NSBOX_STEP_GROUPS = 27,
    NSBOX_STEP_GID = 28,
    NSBOX_STEP_UID = 29,
    NSBOX_STEP_CAPS = 30,
    NSBOX_STEP_NNP = 31,
    NSBOX_STEP_FDS = 32, /* pass_fds */
    NSBOX_STEP_EXEC = 33,
    NSBOX_STEP_KILLED = 34, /* a process of the set-up was killed from outside */
    NSBOX_STEP_SECCOMP = 35,
    NSBOX_STEP_PREEXEC = 36,
    NSBOX_STEP_LANDLOCK = 37,
    NSBOX_STEP_JOIN = 38,         /* a namespace that the caller named */
    NSBOX_STEP_LIMIT_USERNS = 39, /* user namespaces can't be limited, or are not */
    NSBOX_STEP_HOLD = 40,         /* nobody let it go on */
    NSBOX_STEP_STALE = 41,        /* what a template was made of has changed */
    NSBOX_STEP_SANDBOX = 42,      /* macOS: the profile is refused */
    NSBOX_STEP_HELPER = 43,       /* macOS: the helper program can't be executed, or doesn't do its work */
    NSBOX_STEP_KERNEL_ID = 44,    /* the sandbox can't get kernel ids of its own */
    NSBOX_STEP_IDMAP = 45,        /* an op: its source can't be mapped to these ids */
    NSBOX_STEP_INOTIFY = 46,      /* inotify's instances can't be limited */
    NSBOX_STEP_TERMINAL = 47,     /* the command's terminal isn't one, or is another session's */
    NSBOX_STEP_NET = 48,          /* the relay: it doesn't answer, or its side of the net namespace can't be made */
    NSBOX_STEP_END = 49
};

typedef struct nsbox_rlimit {
    uint32_t resource;
    uint32_t reserved;
    uint64_t soft;
    uint64_t hard;
} nsbox_rlimit;

/* A seccomp filter: instructions of 8 bytes each, struct sock_filter of the kernel. */
typedef struct nsbox_filter {
    const uint8_t *code;
    uint32_t len; /* instructions */
    uint32_t reserved;
} nsbox_filter;

/* A Landlock ruleset: rights on files, given by path. */
typedef struct nsbox_path_rule {
    const char *path; /* inside */
    uint64_t rights;  /* LANDLOCK_ACCESS_FS_* */
    uint32_t flags;   /* NSBOX_OPTIONAL: it may be missing. NSBOX_NOFOLLOW: a symlink in it is an error */
    uint32_t reserved;
} nsbox_path_rule;

typedef struct nsbox_ruleset {
    uint64_t files;  /* the rights that are refused where no rule gives them; 0: nothing about files */
    uint64_t net;    /* the same for TCP: LANDLOCK_ACCESS_NET_*, of which there are no rules */
    uint64_t scoped; /* LANDLOCK_SCOPE_* */
    const nsbox_path_rule *paths;
    uint32_t n_paths;
    uint32_t reserved;
} nsbox_ruleset;

/* Capabilities, a bit each: those the command has, those that survive its next exec as another user, and the most it
 * could ever have. */
typedef struct nsbox_caps {
    uint64_t permitted;
    uint64_t inheritable;
    uint64_t bounding;
} nsbox_caps;

/* A directory to start in, and the environment of a command that starts there. */
typedef struct nsbox_place {
    const char *cwd;
    const char *const *envp;
} nsbox_place;

/* What an op of a template found and made. A sandbox made from the template checks that this still holds: if another
 * process replaces or moves a file on the host, what is mounted on that file goes with it (rename(2) detaches mounts
 * of other namespaces). */
typedef struct nsbox_stamp {
    uint64_t source_dev, source_ino; /* BIND: what is bound. OVERLAY: its root */
    uint64_t dev, ino;               /* what lies on top at the destination */
    uint32_t made;                   /* 0: there was nothing to bind or to mask, or the op does neither */
    uint32_t watched;                /* set by Python: enum nsbox_watched */
} nsbox_stamp;

/* Is it mounted where the host can change what it is mounted on? RENEWED: and each copy has another mount there. */
enum nsbox_watched { NSBOX_UNWATCHED = 0, NSBOX_WATCHED = 1, NSBOX_WATCHED_RENEWED = 2 };

/* What report_fd, a socket, gets with hold_fd when the command is held: the descriptors of its root, then of its
 * namespaces cgroup, ipc, mnt, net, pid, uts. */
enum nsbox_shown { NSBOX_SHOWN_ROOT = 0, NSBOX_SHOWN = 7 };

/* Written by the child processes, through shared memory. */
typedef struct nsbox_result {
    int32_t error;      /* 0, or an errno */
    uint32_t step;      /* enum nsbox_step */
    int32_t op;         /* index into the plan, with STEP_LANDLOCK into the ruleset's paths; -1 for none */
    int32_t pid;        /* the command, a child of the caller */
    int32_t init_pid;   /* pid 1 of the sandbox, as the caller numbers it */
    int32_t init_pidfd; /* a descriptor >= 3 for it, close-on-exec; -1 if it is gone already */
    int32_t init_says; /* the read end, nonblocking, of the pipe into which it writes nsbox_word; >= 3, close-on-exec */
    int32_t set_up_pid; /* the process that makes the sandbox; it is in the first user namespace */
    int32_t go_fd;      /* with PARK: the write end of the pipe that tells the init that the set-up is over */
    int32_t pidfd;      /* a pidfd of the command if the caller ignores SIGCHLD; else -1 */
    /* TEMPLATE: its user and mount namespace, a /dev/null that nobody can change, and the init's program. PARK: user_fd
     * alone, the last user namespace of the command. All are >= 3 and close-on-exec. Else -1. */
    int32_t user_fd, mnt_fd, null_fd, image_fd;
    uint64_t root_id;  /* with TEMPLATE: the id of the mount that is the caller's root */
    uint64_t init_ino; /* inode of that pidfd as the set-up saw it (pidfs, Linux 6.9) */
    char detail[256];  /* cut to fit: the target of a link in an op's way, or a directory that can't be made */
} nsbox_result;

/* The byte that an init gets at the end of the set-up. STAYS: it doesn't end with the command. OUTLIVES: nor with
 * the caller. IS_THIRD: the command isn't pid 2 but 3, since a helper of the set-up came before it. GO: the set-up
 * is over, even if others still have the pipe. IS_ADOPTED: the caller reaps it. HAS_ONE_ID: all processes have the
 * init's own id, so that it can kill each. */
enum nsbox_told {
    NSBOX_STAYS = 1,
    NSBOX_OUTLIVES = 2,
    NSBOX_IS_THIRD = 4,
    NSBOX_GO = 8,
    NSBOX_IS_ADOPTED = 16,
    NSBOX_HAS_ONE_ID = 32
};

/* The signals by which the caller has an init end everything. SIGSTKFLT, which nobody sends (signal(7)), ends it at
 * once. The other two end it in order: all processes get SIGTERM. After SIGPWR, what is left when the command has
 * ended has two seconds; after SIGVTALRM, it has as long as it needs, or until END. */
enum nsbox_signal { NSBOX_END = 16, NSBOX_ASK = 30, NSBOX_ASK_PATIENTLY = 26 };

/* What an init reports: that it is up, then that nothing but itself is left of the sandbox. */
enum nsbox_said { NSBOX_SAID_UP = 1, NSBOX_SAID_EMPTY = 2 };

typedef struct nsbox_word {
    uint64_t said;
    int64_t user_us, system_us; /* with EMPTY: used by the init's children, and their children */
    int64_t max_rss;            /* of the largest, in bytes */
} nsbox_word;

/* A user namespace whose maps say who owns the files of a BIND: see nsbox_idmap(). The maps cover the files of this
 * uid and gid. A file that has another owner by now isn't mapped. */
typedef struct nsbox_mapping {
    int32_t userns_fd;
    uint32_t uid;
    uint32_t gid;
} nsbox_mapping;

typedef struct nsbox_request {
    const uint8_t *plan;
    uint64_t plan_len;
    uint64_t namespaces; /* CLONE_NEW* */
    const char *uid_map;
    const char *gid_map;
    const char *uid_map2; /* NULL, or the maps of a second user namespace, entered after the mounts */
    const char *gid_map2;

    /* NULL, or with NSBOX_MAP_BY_HELPER the command lines of newuidmap(1) and newgidmap(1); [1] becomes the pid. */
    const char *const *uid_map_program;
    const char *const *gid_map_program;

    const char *const *programs; /* tried in this order; ends in NULL */
    const char *const *argv;
    const char *const *envp;
    const char *cwd;             /* inside the sandbox; NULL for "/" */
    const int32_t *pass_fds;     /* ascending */
    const nsbox_mapping *idmaps; /* a BIND says which of them it uses */
    const uint32_t *groups;
    const nsbox_rlimit *rlimits;
    const nsbox_ruleset *ruleset; /* or NULL */
    const nsbox_caps *caps;       /* NULL: none. With some, the mounts are locked by a second user namespace */
    const nsbox_place *places;    /* NULL, or instead of cwd and envp: the first that can be entered, else the last */
    const nsbox_filter
        *filters; /* at least one, unless UNCONFINED. The first ones mustn't refuse what the set-up still does */
    uint32_t n_filters;
    uint32_t n_confined_filters; /* before the last ones: installed when the command is in its last user namespace */
    uint32_t n_last_filters;     /* installed when only the exec is left to do */
    uint32_t n_pass_fds;
    uint32_t n_groups;
    uint32_t n_rlimits;
    uint32_t n_places;
    uint32_t n_idmaps;
    uint32_t flags;   /* enum nsbox_spawn_flag */
    int32_t stdin_fd; /* -1: inherited; NSBOX_DEVNULL: /dev/null, of which nothing can be changed */
    int32_t stdout_fd;
    int32_t stderr_fd;
    int32_t umask; /* -1: the caller's */
    int32_t pgid;  /* -1: none */
    uint32_t uid;
    uint32_t gid;
    uint32_t kernel_uid; /* not 0: outside, the whole sandbox has these ids, to which the first maps belong */
    uint32_t kernel_gid; /* (the caller has CAP_SETUID, CAP_SETGID and CAP_SETPCAP for them) */
    int32_t cgroup_fd;   /* the directory of the cgroup for all processes; -1: the caller's */
    int32_t user_fd;     /* a user namespace to be joined instead of making the first; or -1 */
    int32_t user2_fd;    /* the same for the second */
    int32_t pid_fd; /* a pid namespace to be joined. Then the caller must be non-dumpable, since its memory is shared */
    int32_t hold_fd;   /* after the set-up a byte is read from it, then the command goes on; -1: it goes on at once */
    int32_t report_fd; /* with hold_fd: it gets a byte before each that is read: nsbox_shown */
    /* A template's, of which this sandbox gets a copy; then user_fd is the template's too. Without template_plan: the
     * mount namespace in whose copy the root is built, instead of in a copy of the caller's. Or -1. */
    int32_t mnt_fd;
    int32_t null_fd;  /* the template's /dev/null, or -1 */
    int32_t image_fd; /* the template's program of the init, or -1: the call makes its own */
    int32_t park_fd;  /* a pidfd of the init of a parked sandbox, a copy of a template's; or -1 */
    int32_t go_fd;    /* of the same sandbox: nsbox_result's go_fd */
    uint32_t reserved;
    nsbox_stamp *stamps;      /* one for each op of the template; TEMPLATE writes them, template_plan compares them */
    nsbox_stamp *park_stamps; /* PARK writes them: as they are in the copy */
    const uint8_t *template_plan; /* with mnt_fd or park_fd: the plan that the stamps belong to; else NULL */
    uint64_t template_plan_len;
    uint64_t root_id; /* with template_plan: the caller's root is still this mount, or it has changed namespaces */

    const void *profile; /* macOS: from nsbox_seatbelt_compile(); NULL with BY_HELPER or UNCONFINED */
    const char *helper;  /* macOS: the path of our helper program; LIFELINE and BY_HELPER need it */
    int32_t profile_fd;  /* macOS, with BY_HELPER: a file with the helper's orders, see darwin/helper.h */
    int32_t pipe_read;   /* macOS: a pipe that only the caller has, close-on-exec, from 3 up. The call closes both */
    int32_t pipe_write;  /* 0: the call makes one, which a process that another thread starts meanwhile could inherit */
    uint32_t inotify_instances; /* Linux: not 0: limit on the user's, in the first user namespace */
    uint32_t terminal;    /* 1 + the standard descriptor that its session gets, or without SETSID its group; 0: none */
    uint32_t relay_later; /* the relay learns of the sandbox, and nobody waits for its answer */
    uint64_t relay_id;    /* the sandbox's id there */
    int32_t relay_fd;     /* a socket to the relay (net/wire.h), which is sent the new net namespace; or -1 */
    uint32_t keeps_caps;  /* not 0: the command is pid 1 of a session, and keeps NSBOX_KEPT_CAPS */

    void (*after_fork)(void); /* with NSBOX_PREEXEC: called in the command before any other code of the caller */
    uint8_t *arena; /* stacks and work space of the children: nsbox_arena_size() bytes of a MAP_SHARED mapping */
    uint64_t arena_len;
    nsbox_result *result; /* in a MAP_SHARED mapping too */
} nsbox_request;

/* Bytes of arena that a plan of nops ops needs. */
uint64_t nsbox_arena_size(uint32_t nops);

/* Starts one command, and blocks until it has executed its program. Returns 0 and fills req->result, whether it
 * worked or not; on failure no process is left.
 *
 * With NSBOX_PREEXEC it returns twice, as fork(2) does: first with 1, in the command. The command is confined but
 * hasn't executed its program yet; it has a copy of the caller's memory and runs as the thread that called. There
 * nsbox_preexec_done() has to be called.
 */
int nsbox_spawn(const nsbox_request *req);

/* To be called only in a command: executes the program or, if `failed`, gives up. Never returns. */
void nsbox_preexec_done(const nsbox_request *req, int32_t failed);

#include "abi_branch.h"

#endif
