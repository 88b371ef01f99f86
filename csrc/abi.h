/* abi.h: the boundary between Python and the C core, in both directions.
 *
 * Read by the C compiler and, lines that begin with '#' removed, by cffi; opcodes, flags and
 * steps reach Python from here and are never typed again.
 *
 * Python owns every buffer and every descriptor named here. C borrows them for the length of one
 * call, allocates nothing, and closes only what it opened itself.
 */
#ifndef NSBOX_ABI_H
#define NSBOX_ABI_H

#include <stdint.h>

/* ---- the plan: one contiguous blob -------------------------------------------------------
 * struct nsbox_plan, then nops * struct nsbox_op, then a pool of bytes. Offsets count from the
 * start of the blob; strings end in NUL inside it. plan.c trusts none of this. */

enum nsbox_plan_constants {
    NSBOX_MAGIC = 0x786f626e, /* "nbox", little-endian */
    NSBOX_VERSION = 1,
    NSBOX_MAX_LAYERS = 10, /* overlay layers: fsconfig(2) takes strings of at most 255 bytes */
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
    NSBOX_RDONLY = 1,      /* BIND, DATA: read-only */
    NSBOX_DEVICES = 2,     /* BIND: device nodes stay usable (no nodev) */
    NSBOX_OPTIONAL = 4,    /* BIND: a missing source is no error. MASK: nor a missing destination. Also of path rules */
    NSBOX_FROM_FD = 8,     /* BIND: the source is op.fd */
    NSBOX_COVER = 16,      /* PROC: writable kernel settings become read-only */
    NSBOX_OVL_TMP = 32,    /* OVERLAY: writes go to a tmpfs and are dropped */
    NSBOX_OVL_RO = 64,     /* OVERLAY: read-only */
    NSBOX_PROBE_TTY = 128, /* BIND: only when descriptor 1 of the caller is a terminal (/dev/console) */
    NSBOX_NOFOLLOW = 256   /* BIND: a symlink in the source path is an error (ELOOP). MASK: in the destination */
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
    uint32_t mode;     /* permission bits */
    int32_t fd;        /* BIND with NSBOX_FROM_FD */
    uint32_t src;      /* offset of: source path, link target, host name, data; OVERLAY: of `count` strings */
    uint32_t dst;      /* offset of: destination path */
    uint32_t count;    /* FILE, DATA: bytes at src; OVERLAY: strings at src, the lower layers from the bottom up, */
    uint32_t reserved; /*   then (neither TMP nor RO) the upper and the work directory */
    uint64_t size;     /* TMPFS: bytes, 0 for the kernel's default */
} nsbox_op;

/* ---- one spawn ------------------------------------------------------------------------------ */

enum nsbox_stdio { NSBOX_DEVNULL = -2 };

enum nsbox_spawn_flag {
    NSBOX_CLOSE_FDS = 1,       /* descriptors from 3 up are closed, but for pass_fds */
    NSBOX_RESTORE_SIGNALS = 2, /* SIGPIPE, SIGXFSZ to default */
    NSBOX_SETSID = 4,
    NSBOX_FORK_COMMAND = 8,    /* the command changes its kernel ids: never in the caller's memory */
    NSBOX_DENY_SETGROUPS = 16, /* write "deny" to /proc/self/setgroups before the gid map */
    NSBOX_MAP_BY_HELPER = 32,  /* maps of more than one id: written by a process of the parent namespace */
    NSBOX_ADOPT_INIT = 64,     /* the init becomes a child of the caller, since nobody else reaps it */
    NSBOX_SET_GROUPS = 128,
    NSBOX_CWD_OPTIONAL = 256, /* where cwd can't be entered, "/" is it */
    NSBOX_DROP_GROUPS = 512,  /* the caller's supplementary groups go, before there is a user namespace */
    NSBOX_PREEXEC = 1024,     /* with FORK_COMMAND: nsbox_spawn() returns 1 in the command before it executes */
    NSBOX_SETSID_LAST = 2048, /* with PREEXEC: setsid(2) after it, unless it was done there */
    NSBOX_STAY = 4096         /* the sandbox goes on after the command's end, until nothing runs in it */
};

/* Where a spawn stopped. */
enum nsbox_step {
    NSBOX_STEP_NONE = 0,
    NSBOX_STEP_PLAN = 1,     /* the blob is malformed */
    NSBOX_STEP_CLONE = 2,    /* no process for the mediator */
    NSBOX_STEP_LIFELINE = 3, /* no pidfd of the caller, or it is dead */
    NSBOX_STEP_UNSHARE = 4,  /* namespaces refused */
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
    NSBOX_STEP_END = 38
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

/* A Landlock ruleset: rights on files by where they are. */
typedef struct nsbox_path_rule {
    const char *path; /* inside */
    uint64_t rights;  /* LANDLOCK_ACCESS_FS_* */
    uint32_t flags;   /* NSBOX_OPTIONAL: it may be missing */
    uint32_t reserved;
} nsbox_path_rule;

typedef struct nsbox_ruleset {
    uint64_t files;  /* the rights that are refused where no rule gives them; 0: nothing about files */
    uint64_t scoped; /* LANDLOCK_SCOPE_* */
    const nsbox_path_rule *paths;
    uint32_t n_paths;
    uint32_t reserved;
} nsbox_ruleset;

/* Written by the child processes, through shared memory. */
typedef struct nsbox_result {
    int32_t error;      /* 0, or an errno */
    uint32_t step;      /* enum nsbox_step */
    int32_t op;         /* index into the plan, -1 for none */
    int32_t pid;        /* the command, a child of the caller */
    int32_t init_pid;   /* pid 1 of the sandbox, as the caller numbers it */
    int32_t init_pidfd; /* a descriptor >= 3 for it, close-on-exec; -1 if it is gone already */
    int32_t init_says;  /* the read end, nonblocking, of the pipe on which it says nsbox_word; likewise */
    int32_t reserved;
    uint64_t init_ino; /* inode of that pidfd as the set-up saw it (pidfs, Linux 6.9) */
} nsbox_result;

/* What an init says: that it is up, then that nothing but itself is left of the sandbox. */
enum nsbox_said { NSBOX_SAID_UP = 1, NSBOX_SAID_EMPTY = 2 };

typedef struct nsbox_word {
    uint64_t said;
    int64_t user_us; /* with EMPTY: what the processes used that were the init's children, and their children */
    int64_t system_us;
    int64_t max_rss; /* of the largest, in bytes */
} nsbox_word;

typedef struct nsbox_request {
    const uint8_t *plan;
    uint64_t plan_len;
    uint64_t namespaces; /* CLONE_NEW* */
    const char *uid_map;
    const char *gid_map;
    const char *uid_map2; /* NULL, or the maps of a second user namespace, entered after the mounts */
    const char *gid_map2;

    /* NULL, or with NSBOX_MAP_BY_HELPER newuidmap(1) and newgidmap(1) with their arguments; [1] becomes the pid. */
    const char *const *uid_map_program;
    const char *const *gid_map_program;

    const char *const *programs; /* tried in this order; ends in NULL */
    const char *const *argv;
    const char *const *envp;
    const char *cwd;         /* inside the sandbox; NULL for "/" */
    const int32_t *pass_fds; /* ascending */
    const uint32_t *groups;
    const nsbox_rlimit *rlimits;
    const nsbox_ruleset *ruleset; /* or NULL */
    const nsbox_filter *filters;  /* at least one. The first ones mustn't refuse what the set-up still does */
    uint32_t n_filters;
    uint32_t n_confined_filters; /* before the last ones: installed when the command is in its last user namespace */
    uint32_t n_last_filters;     /* installed when only the exec is left to do */
    uint32_t n_pass_fds;
    uint32_t n_groups;
    uint32_t n_rlimits;
    uint32_t flags;   /* enum nsbox_spawn_flag */
    int32_t stdin_fd; /* -1: inherited; NSBOX_DEVNULL: /dev/null, of which nothing can be changed */
    int32_t stdout_fd;
    int32_t stderr_fd;
    int32_t umask; /* -1: the caller's */
    int32_t pgid;  /* -1: none */
    uint32_t uid;
    uint32_t gid;
    int32_t cgroup_fd; /* the directory of the cgroup for all processes; -1: the caller's */
    int32_t reserved;

    void (*after_fork)(void); /* with NSBOX_PREEXEC: called in the command before anything else of the caller's */

    uint8_t *arena; /* stacks and work space of the children: nsbox_arena_size() bytes of a MAP_SHARED mapping */
    uint64_t arena_len;
    nsbox_result *result; /* in a MAP_SHARED mapping too */
} nsbox_request;

/* Bytes of arena that a plan of nops ops needs. */
uint64_t nsbox_arena_size(uint32_t nops);

/* 0, or -EINVAL with the index of the first malformed op in *bad (-1: the header). */
int nsbox_plan_check(const uint8_t *plan, uint64_t len, int32_t *bad);

/* Starts one command. Returns 0 and fills req->result, whether it worked or not; on failure no
 * process is left. Blocks until the command has executed its program.
 *
 * With NSBOX_PREEXEC it returns twice, as fork(2) does: first with 1, in the command, confined but not yet executed, with
 * a copy of the caller's memory, as the thread that called. There nsbox_preexec_done() has to be called. */
int nsbox_spawn(const nsbox_request *req);

/* Only in a command: executes the program, or if `failed`, gives up. Never returns. */
void nsbox_preexec_done(const nsbox_request *req, int32_t failed);

/* Waits until the init behind pidfd is gone, or has said at init_says (-1: never mind) that the sandbox is empty, at most
 * timeout_ms (-1: for ever); then reaps it if it is the caller's child. 1: so it is; 0: not yet; -errno. */
int nsbox_wait(int pidfd, int init_says, int timeout_ms);

/* The version of the kernel's Landlock, or -errno (EOPNOTSUPP: switched off at boot, ENOSYS: not built in). */
int nsbox_landlock_abi(void);

/* The machine's name, then each system call that its kernel headers have: "name number", a line each. */
const char *nsbox_syscalls(void);

/* The image that becomes pid 1 of each sandbox. */
const uint8_t *nsbox_init_bytes(void);
uint64_t nsbox_init_size(void);

#endif
