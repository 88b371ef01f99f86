/* calls.h: what Python can ask of the C core on Linux, besides what abi.h has for every system. cffi reads it too. */
#ifndef NSBOX_CALLS_H
#define NSBOX_CALLS_H

#include "abi.h"
#include "abi_bwrap.h"

/* 0, or -EINVAL with the index of the first malformed op in *bad (-1: the header). Each spawn begins with it; Python
 * calls it in tests alone. */
int nsbox_plan_check(const uint8_t *plan, uint64_t len, int32_t *bad);

/* Waits until the init behind pidfd is gone, or has reported through init_says (-1: don't look) that the sandbox is
 * empty; at most timeout_ms (-1: for ever). Then reaps it if it is the caller's child. 1: done; 0: not yet; -errno. */
int nsbox_wait(int pidfd, int init_says, int timeout_ms);

/* Opens what exists, by openat2(2): a descriptor or -errno. */
int nsbox_open_beneath(int dir, const char *path, uint64_t flags, uint64_t resolve);

/* renameat2(2) and syncfs(2): 0 or -errno. */
int nsbox_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int nsbox_sync(int fd);

/* Makes a user namespace with these maps, for idmapped mounts: a descriptor or -errno. stack: for a process that is
 * in it meanwhile. */
int nsbox_idmap(const char *uids, const char *gids, uint8_t *stack, uint64_t size);

/* Can what is at path, and all that is mounted below it, be mounted with this mapping? 0 or -errno. EINVAL: a file
 * system there can't be. EPERM: the caller may not, or it is mapped already. */
int nsbox_try_idmap(const char *path, int userns);

/* Starts the relay of network lists: a process that is nobody's child, with a null device as 0 to 2 and these
 * descriptors from 3 up. Returns a pidfd of it, from 3 up, or -errno. is_child: make it the caller's child after
 * all, since nobody else reaps orphans. stack: for two processes, up to their exec or end. */
enum nsbox_relay { NSBOX_RELAY_FDS = 3 };
int nsbox_relay_start(const char *program, const int32_t *fds, int devnull, int is_child, uint8_t *stack,
                      uint64_t size);

/* Throw-away overlays of directories of a kept tree, as detached mounts: their files can be read, and what is written
 * to them is kept in memory. All that are made by one call share one tmpfs for that. */
typedef struct nsbox_overlay {
    const char *lower;         /* the directory: an absolute path in the kept tree, without ':', ',' and '\\' */
    const char *const *hidden; /* paths relative to that, which the overlay doesn't show; NULL at the end */
} nsbox_overlay;

typedef struct nsbox_overlays {
    int32_t user_fd, mnt_fd; /* namespaces of the kept tree, which has a directory /scratch */
    int32_t report_fd;       /* a socket, through which each mount arrives with a byte, in their order */
    uint32_t n;
    uint64_t size; /* the most bytes that are written to all of them together; 0: the kernel's default */
    const nsbox_overlay *each;
    uint8_t *stack; /* for a process that makes them */
    uint64_t stack_size;
    /* If that fails: */
    uint32_t step; /* enum nsbox_step */
    uint32_t at;   /* index of the overlay */
} nsbox_overlays;

/* Returns 0 or -errno. ELOOP: a link lies on the way to something hidden. */
int nsbox_make_overlays(nsbox_overlays *o);

/* Calls that a sandbox is made of. */
enum nsbox_call {
    NSBOX_CALL_MOUNT_SETATTR,
    NSBOX_CALL_MOVE_MOUNT,
    NSBOX_CALL_OPEN_TREE,
    NSBOX_CALL_FSOPEN,
    NSBOX_CALL_FSCONFIG,
    NSBOX_CALL_FSMOUNT,
    NSBOX_CALL_PIVOT_ROOT,
    NSBOX_CALL_UMOUNT2,
    NSBOX_CALL_SETNS,
    NSBOX_CALL_PIDFD_OPEN,
    NSBOX_CALL_CLOSE_RANGE,
    NSBOX_CALL_EXECVEAT,
    NSBOX_CALLS
};

/* Finds out which of them are refused. errors: for each, ENOSYS, EPERM, -1 if the call kills the process, or 0.
 * stack: for a process that tries them. Returns 0, or -errno where there is no user namespace for it. */
int nsbox_refused_calls(int32_t *errors, uint8_t *stack, uint64_t size);

/* PR_GET_DUMPABLE as this process set it, not as a spawn has changed it for a moment. Or -EBUSY. */
int nsbox_dumpable(void);

/* Keeps spawns of this process from changing ids until this thread releases them: 0, or -EBUSY. */
int nsbox_hold_ids(void);
void nsbox_release_ids(void);
void nsbox_forget_ids(void);

/* PR_GET_SECUREBITS, capabilities(7) */
int nsbox_securebits(void);

/* The kernel's Landlock version, or -errno (EOPNOTSUPP: switched off at boot, ENOSYS: not built in). */
int nsbox_landlock_abi(void);

/* The machine's name, then each system call that its kernel headers have: "name number", a line each. */
const char *nsbox_syscalls(void);

/* The image that becomes pid 1 of each sandbox. */
const uint8_t *nsbox_init_bytes(void);
uint64_t nsbox_init_size(void);

/* The image that becomes pid 1 of a session. */
const uint8_t *nsbox_session_bytes(void);
uint64_t nsbox_session_size(void);

/* The library by which an interpreter makes branches: branch/branch.h. */
const uint8_t *nsbox_branch_bytes(void);
uint64_t nsbox_branch_size(void);

#endif
