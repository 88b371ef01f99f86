/* ops.h: what the handlers of a plan's ops share.
 *
 * One handler per opcode, in the table at the end of op_mount.c's sibling files' prototypes; each
 * returns 0 or -errno and keeps b->step at what it is doing, so that the caller can say what failed.
 * All run in the mediator: in the caller's memory, but with a descriptor table, working directory
 * and namespaces of its own.
 */
#ifndef NSBOX_OPS_H
#define NSBOX_OPS_H

#include "plan.h"
#include "sys.h"

struct builder {
    const uint8_t *plan;
    uint32_t step;     /* enum nsbox_step of what is being done */
    int root;          /* the sandbox's root mount; destinations resolve in it */
    int base;          /* the tmpfs that was the root at first */
    int scratch;       /* a tmpfs that the sandbox can't see, or -1: data files, overlay upper layers */
    int masked;        /* an empty file without permissions in it, or -1 */
    int proc;          /* the caller's /proc, O_PATH */
    int stdout_fd;     /* what descriptor 1 of the command will be */
    uint32_t n_data;   /* names given out in scratch */
    uint64_t *own;     /* devices of the file systems made for this sandbox */
    uint32_t n_own, max_own;
    int (*new_proc)(void *arg); /* a detached procfs of the sandbox's pid namespace */
    void *new_proc_arg;
};

#define MOUNT_ATTR_SAFE (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
#define SCRATCH_NAME ".nsbox-scratch"

/* A step and its error check stand together. */
#define TRY(b, where, expr)                                                                                            \
    do {                                                                                                               \
        (b)->step = (where);                                                                                           \
        int try_ret_ = (int)(expr);                                                                                    \
        if (try_ret_ < 0)                                                                                              \
            return try_ret_;                                                                                           \
    } while (0)

/* dest.c */
enum dest_kind { DEST_DIR, DEST_FILE };
int dest_open(struct builder *b, const char *path, enum dest_kind kind, unsigned mode); /* made if missing */
int dest_find(struct builder *b, const char *path);                                    /* never made */
int dest_parent(struct builder *b, const char *path, const char **name);               /* parents made */
int own_add(struct builder *b, int fd);
int own_check(struct builder *b, int fd); /* 0 when fd's file system was made for this sandbox, else -EROFS */
int file_kind(int fd, unsigned *mode, uint64_t *dev);

/* fs.c */
int fs_make(struct builder *b, const char *type, const char *const *options, unsigned attrs);
int fs_tmpfs(struct builder *b, unsigned mode, uint64_t size);
int fs_scratch(struct builder *b);
int mount_attrs(int fd, unsigned set, unsigned flags);
int attach(struct builder *b, int mount, int dest, const char *path);
int write_all(int fd, const uint8_t *p, size_t n);
char *put_uint(char *at, uint64_t value, unsigned base);
char *put_str(char *at, const char *s);

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
int op_chmod(struct builder *b, const nsbox_op *op);
int op_overlay(struct builder *b, const nsbox_op *op);
int op_mask(struct builder *b, const nsbox_op *op);
int op_hostname(struct builder *b, const nsbox_op *op);
int op_loopback(struct builder *b, const nsbox_op *op);

/* build.c: the whole root, from the new tmpfs to the pivot. *op tells how far the plan came. */
int build_root(struct builder *b, int32_t *op);

#endif
