/* abi_bwrap.h: a command line of bubblewrap, read. The program bwrap (bwrap/program/) and Python get it from the same
 * parser (bwrap/line/).
 */
#ifndef NSBOX_ABI_BWRAP_H
#define NSBOX_ABI_BWRAP_H

#include <stdint.h>

/* Bits. */
enum nsbox_bwrap_namespace {
    NSBOX_BWRAP_USER = 1,
    NSBOX_BWRAP_IPC = 2,
    NSBOX_BWRAP_PID = 4,
    NSBOX_BWRAP_NET = 8,
    NSBOX_BWRAP_UTS = 16,
    NSBOX_BWRAP_CGROUP = 32
};

enum nsbox_bwrap_flag {
    NSBOX_BWRAP_DISABLE_USERNS = 1,
    NSBOX_BWRAP_ASSERT_USERNS_DISABLED = 2,
    NSBOX_BWRAP_NEW_SESSION = 4,
    NSBOX_BWRAP_DIE_WITH_PARENT = 8,
    NSBOX_BWRAP_AS_PID_1 = 16,
    NSBOX_BWRAP_NOT_A_SECURITY_BOUNDARY = 32, /* accepted, without effect */
    NSBOX_BWRAP_CLEARED = 64,                 /* --clearenv was among the options */
    NSBOX_BWRAP_LEVELS = 128                  /* messages begin with their syslog level from now on */
};

/* Indices. */
enum nsbox_bwrap_fd {
    NSBOX_BWRAP_USERNS,
    NSBOX_BWRAP_USERNS2,
    NSBOX_BWRAP_PIDNS,
    NSBOX_BWRAP_SECCOMP,
    NSBOX_BWRAP_SYNC,
    NSBOX_BWRAP_BLOCK,
    NSBOX_BWRAP_USERNS_BLOCK,
    NSBOX_BWRAP_INFO,
    NSBOX_BWRAP_JSON_STATUS,
    NSBOX_BWRAP_FDS
};
enum nsbox_bwrap_id { NSBOX_BWRAP_UID, NSBOX_BWRAP_GID, NSBOX_BWRAP_IDS };
enum nsbox_bwrap_text {
    NSBOX_BWRAP_CHDIR,
    NSBOX_BWRAP_ARGV0,
    NSBOX_BWRAP_EXEC_LABEL,
    NSBOX_BWRAP_FILE_LABEL,
    NSBOX_BWRAP_HOSTNAME,
    NSBOX_BWRAP_TEXTS
};

enum nsbox_bwrap_what {
    NSBOX_BWRAP_BIND,
    NSBOX_BWRAP_RO_BIND,
    NSBOX_BWRAP_DEV_BIND,
    NSBOX_BWRAP_BIND_FD,
    NSBOX_BWRAP_RO_BIND_FD,
    NSBOX_BWRAP_REMOUNT_RO,
    NSBOX_BWRAP_PROC,
    NSBOX_BWRAP_DEV,
    NSBOX_BWRAP_MQUEUE,
    NSBOX_BWRAP_TMPFS,
    NSBOX_BWRAP_DIR,
    NSBOX_BWRAP_FILE,
    NSBOX_BWRAP_BIND_DATA,
    NSBOX_BWRAP_RO_BIND_DATA,
    NSBOX_BWRAP_SYMLINK,
    NSBOX_BWRAP_CHMOD,
    NSBOX_BWRAP_OVERLAY,
    NSBOX_BWRAP_TMP_OVERLAY,
    NSBOX_BWRAP_RO_OVERLAY,
    NSBOX_BWRAP_OP_HOSTNAME,
    NSBOX_BWRAP_WHATS,
    NSBOX_BWRAP_TRY = 256 /* beside one of these: a missing source is no error */
};

/* One op, in the order of the options. */
typedef struct nsbox_bwrap_op {
    uint32_t what;
    uint32_t optional;
    uint32_t mode;
    int32_t fd;
    const char *src;    /* as it was given: relative, or with ".."; a link's target */
    const char *dest;   /* absolute, without empty and "." parts; it may have ".." */
    const char *option; /* that it comes from, for messages */
    const char *upper, *work;
    const char *const *layers;
    uint64_t n_layers;
    uint64_t size; /* of a tmpfs; 0: the kernel's default */
} nsbox_bwrap_op;

typedef struct nsbox_bwrap_filter {
    const uint8_t *code;
    uint64_t len; /* bytes */
} nsbox_bwrap_filter;

typedef struct nsbox_bwrap_cap {
    int32_t number; /* -1: all */
    uint32_t add;
} nsbox_bwrap_cap;

enum nsbox_bwrap_outcome {
    NSBOX_BWRAP_READ,
    NSBOX_BWRAP_REFUSED, /* message says why */
    NSBOX_BWRAP_NO_COMMAND,
    NSBOX_BWRAP_ASKS_HELP,
    NSBOX_BWRAP_ASKS_VERSION
};

typedef struct nsbox_bwrap_line {
    uint32_t outcome;
    uint32_t flags;              /* enum nsbox_bwrap_flag */
    uint32_t unshare, wanted;    /* enum nsbox_bwrap_namespace: must be new; wanted if they can be had */
    int32_t fd[NSBOX_BWRAP_FDS]; /* -1: none */
    int64_t id[NSBOX_BWRAP_IDS]; /* -1: none */
    const char *text[NSBOX_BWRAP_TEXTS];
    const char *message;        /* without a newline */
    const char *const *command; /* ends in NULL, as env does */
    const char *const *env;
    const char *const *warnings; /* lines without a newline */
    const char *const *lock_files;
    const nsbox_bwrap_op *ops;
    const nsbox_bwrap_filter *filters;
    const nsbox_bwrap_cap *caps;
    const int32_t *fds; /* all that options name, except what was read meanwhile */
    uint64_t n_command, n_env, n_warnings, n_lock_files, n_ops, n_filters, n_caps, n_fds;
    void *memory; /* of all that; nsbox_bwrap_forget() gives it back */
} nsbox_bwrap_line;

/* Reads a command line. words: those after the program's name, NULL at the end. envp: the environment that it starts
 * from. uid, gid: the caller's real ones. It asks the system nothing, except that it reads --args and --add-seccomp-fd
 * to their ends, and closes these descriptors from 3 up. Returns 0 with an outcome, or -ENOMEM. */
int nsbox_bwrap_parse(nsbox_bwrap_line *line, const char *const *words, const char *const *envp, uint32_t uid,
                      uint32_t gid);
void nsbox_bwrap_forget(nsbox_bwrap_line *line);

#endif
