/* ops.h: what the handlers of a plan's ops share.
 *
 * There is one handler per opcode, in the table of build.c. Each returns 0 or -errno and keeps b->step at what it is
 * doing, so that the caller can say what failed. All run in the mediator: in the caller's memory, but with a working
 * directory and namespaces of their own. For a while the mediator shares its descriptor table with the init and the
 * command, which make file systems in it (parallel.c).
 */
#ifndef NSBOX_OPS_H
#define NSBOX_OPS_H

#include "plan.h"
#include "kernel/sys_mount.h"

enum { NOT_EARLY = -1 };

/* What a copy of a kept tree has mounted at a path. Whatever else lies there, paths below it resolve in this. */
struct anchor {
    const char *path;
    int root;
};

struct builder {
    const uint8_t *plan;
    uint32_t step;    /* enum nsbox_step of what is being done */
    int root;         /* the sandbox's root mount; destinations resolve in it */
    int base;         /* the tmpfs that was the root at first */
    int scratch;      /* a tmpfs that the sandbox can't see, or -1: data files, overlay upper layers */
    int masked;       /* an empty file without permissions in it, or -1 */
    int proc;         /* the caller's /proc, O_PATH */
    int stdout_fd;    /* what descriptor 1 of the command will be */
    uint64_t root_id; /* the mount that the root is; 0 before the pivot */
    int *lifted;      /* detached mounts of a kept tree, or -errno; NSBOX_MAX_LIFTED at most */
    uint32_t n_lifted;
    struct anchor *anchors; /* room for one per op and one more; only in a copy of a kept tree there are some */
    uint32_t n_anchors;
    nsbox_stamp *stamps; /* of a kept tree, or NULL */
    /* In a copy of a kept tree: that one's plan and stamps, and those of the copy if it is to be parked; or NULL. */
    const uint8_t *kept_plan;
    const nsbox_stamp *kept_stamps;
    nsbox_stamp *park_stamps;
    int *early;      /* sources of the ops, opened before the root was begun: a mount or -errno each */
    int is_early;    /* early is filled; NOT_EARLY: the op opens its source itself */
    int skipped;     /* the current op found nothing to bind or to mask */
    uint32_t n_data; /* names given out in scratch */
    uint64_t *own;   /* devices of the file systems made for this sandbox */
    uint32_t n_own, max_own;
    int (*new_proc)(struct builder *b); /* a detached procfs of the sandbox's pid namespace (pid1.c) */
    int (*new_fs)(struct builder *b, const nsbox_op *op); /* another file system, for the op (parallel.c) */
    int (*after_op)(struct builder *b);                   /* mediator.c */
    /* The directory that the last destination was made in, when it is ours: most ops come in families (/dev/...). */
    int parent;
    int parent_root; /* the root that its path belongs to */
    const char *parent_path;
    size_t parent_len;
    unsigned parent_mode; /* of directories that are made on the way to a destination */
    int in_one_call;      /* open_tree_attr(2) has worked */
    int in_two_calls;     /* open_tree_attr(2) has failed: see fs_clone() */
    int host_writes;      /* NSBOX_HOST_WRITES */
    char *detail;         /* nsbox_result's */
};

#define MOUNT_ATTR_SAFE (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
#define SCRATCH_NAME ".nsbox-scratch"

/* A step and its error check in one place. */
#define TRY(b, where, expr)                                                                                            \
    do {                                                                                                               \
        (b)->step = (where);                                                                                           \
        int try_ret_ = (int)(expr);                                                                                    \
        if (try_ret_ < 0)                                                                                              \
            return try_ret_;                                                                                           \
    } while (0)

/* dest.c */
enum dest_kind { DEST_DIR, DEST_FILE };
int dest_open(struct builder *b, const char *path, enum dest_kind kind, unsigned mode,
              const char **name);                                        /* made if missing */
int dest_find(struct builder *b, const char *path);                      /* never made */
int dest_find_plain(struct builder *b, const char *path);                /* nor through a symlink */
int dest_root(const struct builder *b, const char **path);               /* where it resolves */
int dest_parent(struct builder *b, const char *path, const char **name); /* made if missing; then release_parent() */
void release_parent(struct builder *b, int dir);
void forget_parent(struct builder *b);
int own_add(struct builder *b, int fd);
int own_check(struct builder *b, int fd); /* 0 when fd's file system was made for this sandbox, else -EROFS */
int file_kind(int fd, unsigned *mode, uint64_t *dev);

/* fs.c */
int fs_make(struct builder *b, const char *type, const char *const *options, unsigned attrs);
int as_own(struct builder *b, int mount);
int fs_of(struct builder *b, const nsbox_op *op);
int fs_tmpfs(struct builder *b, unsigned mode, uint64_t size);
int base_read_only(struct builder *b, int on);
int fs_scratch(struct builder *b);
int fs_reopen(struct builder *b, int fd, int flags);
int fs_devnull(struct builder *b);
int mount_attrs(int fd, unsigned set, unsigned flags);
int fs_clone(struct builder *b, int dir, const char *path, unsigned flags, unsigned attrs);
int fs_clone_mapped(struct builder *b, int dir, const char *path, unsigned flags, unsigned attrs, int userns);
int attach(struct builder *b, int mount, int dest, const char *name, const char *path);
int attach_at(struct builder *b, int mount, const char *path, enum dest_kind kind);
int write_all(int fd, const uint8_t *p, size_t n);
char *put_uint(char *at, uint64_t value, unsigned base);
char *put_str(char *at, const char *s);

/* op_mount.c */
int open_source(struct builder *b, const nsbox_op *op, const nsbox_mapping *to);
int may_be_missing(const nsbox_op *op, int error);

/* handlers */
int op_bind(struct builder *b, const nsbox_op *op);
int op_tmpfs(struct builder *b, const nsbox_op *op);
int op_proc(struct builder *b, const nsbox_op *op);
int op_devpts(struct builder *b, const nsbox_op *op);
int op_mqueue(struct builder *b, const nsbox_op *op);
int op_dir(struct builder *b, const nsbox_op *op);
int op_file(struct builder *b, const nsbox_op *op);
int op_data(struct builder *b, const nsbox_op *op);
int op_symlink(struct builder *b, const nsbox_op *op);
int op_remount_ro(struct builder *b, const nsbox_op *op);
int op_freeze(struct builder *b, const nsbox_op *op);
int op_chmod(struct builder *b, const nsbox_op *op);
int op_overlay(struct builder *b, const nsbox_op *op);
int op_mask(struct builder *b, const nsbox_op *op);
int loopback_up(void);
void open_ports(int settings);
int op_hostname(struct builder *b, const nsbox_op *op);
int op_loopback(struct builder *b, const nsbox_op *op);

/* stamps.c */
int stamp_source(struct builder *b, const nsbox_op *op, int tree);
int check_device(struct builder *b, const nsbox_op *op, int tree);
void stamp_made(struct builder *b, uint32_t i);
int is_mounting(const nsbox_op *op);
int stamp_destinations(struct builder *b, int32_t *op);
int stamp_places(struct builder *b, nsbox_stamp *stamps);
int stamp_renewed(const uint8_t *plan, nsbox_stamp *stamps, const char *path, int mount);
int stamp_check(const uint8_t *plan, const nsbox_stamp *stamps, const char *path, int fd);
int stamps_check_sources(const uint8_t *plan, const nsbox_stamp *stamps);
int stamps_check_destinations(const uint8_t *plan, const nsbox_stamp *stamps);

/* renewed.c */
int kept_place(struct builder *b, const char *path);
int renewed_place(struct builder *b, const nsbox_op *op);
void add_anchor(struct builder *b, const char *path, int root);
int lift(struct builder *b, const nsbox_op *op, int place);
int mount_renewed(struct builder *b, const nsbox_op *op, int place, int mount);
void keep_renewed(struct builder *b, const nsbox_op *op, int mount);
void close_renewed(struct builder *b);

/* build.c: the whole root, from the new tmpfs to the pivot. *op says how far the plan got. */
int build_root(struct builder *b, int32_t *op);
int renew_root(struct builder *b, int32_t *op); /* the same in a copy of a kept tree: what each command gets fresh */
int here(struct builder *b);                    /* the root is already what it is to be */
int enter_root(struct builder *b);
int drop_old_root(struct builder *b);
int old_root_is_gone(struct builder *b); /* 1, 0 or -errno */

#endif
