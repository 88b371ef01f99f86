/* uapi.h: what the kernel's interface has got since Linux 4.18, whose headers are enough to build the core: those of
 * RHEL 8, and so of manylinux_2_28. Newer headers may give some of it as well. What is in headers that older kernels
 * don't have at all, such as <linux/mount.h> and <linux/openat2.h>, is here alone: they are not included. */
#ifndef NSBOX_UAPI_H
#define NSBOX_UAPI_H

#include <stdint.h>

#include <asm/unistd.h>
#include <linux/fcntl.h>
#include <linux/memfd.h>
#include <linux/sched.h>
#include <linux/stat.h>
#include <linux/wait.h>

/* Since Linux 5.0 a system call has the same number on both processors. */
#ifndef __NR_pidfd_send_signal
#define __NR_pidfd_send_signal 424 /* Linux 5.1 */
#endif
#ifndef __NR_open_tree
#define __NR_open_tree 428 /* these six: Linux 5.2 */
#define __NR_move_mount 429
#define __NR_fsopen 430
#define __NR_fsconfig 431
#define __NR_fsmount 432
#define __NR_fspick 433
#endif
#ifndef __NR_pidfd_open
#define __NR_pidfd_open 434 /* Linux 5.3 */
#endif
#ifndef __NR_close_range
#define __NR_close_range 436 /* Linux 5.9 */
#endif
#ifndef __NR_openat2
#define __NR_openat2 437 /* Linux 5.6 */
#endif
#ifndef __NR_mount_setattr
#define __NR_mount_setattr 442 /* Linux 5.12 */
#endif
#ifndef __NR_landlock_create_ruleset
#define __NR_landlock_create_ruleset 444 /* these three: Linux 5.13 */
#define __NR_landlock_add_rule 445
#define __NR_landlock_restrict_self 446
#endif
#ifndef __NR_open_tree_attr
#define __NR_open_tree_attr 467 /* Linux 6.15 */
#endif

#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000 /* Linux 5.2 */
#endif
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000 /* Linux 5.2 */
#endif
#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U /* Linux 6.3; older kernels refuse it with EINVAL */
#endif
#ifndef P_PIDFD
#define P_PIDFD 3 /* Linux 5.4 */
#endif
#ifndef STATX_MNT_ID
#define STATX_MNT_ID 0x1000U /* Linux 5.8 */
#endif
#ifndef STATX_ATTR_MOUNT_ROOT
#define STATX_ATTR_MOUNT_ROOT 0x2000 /* Linux 5.8 */
#endif

/* The kernel's struct statx, whose stx_mnt_id is of Linux 5.8. */
struct sys_statx {
    uint32_t stx_mask, stx_blksize;
    uint64_t stx_attributes;
    uint32_t stx_nlink, stx_uid, stx_gid;
    uint16_t stx_mode, spare;
    uint64_t stx_ino, stx_size, stx_blocks, stx_attributes_mask;
    struct {
        int64_t tv_sec;
        uint32_t tv_nsec;
        int32_t spare;
    } stx_atime, stx_btime, stx_ctime, stx_mtime;
    uint32_t stx_rdev_major, stx_rdev_minor, stx_dev_major, stx_dev_minor;
    uint64_t stx_mnt_id;
    uint64_t rest[13];
};
_Static_assert(sizeof(struct sys_statx) == 256, "the kernel's size");

/* <linux/openat2.h>, Linux 5.6. */
struct sys_open_how {
    uint64_t flags, mode, resolve;
};
#ifndef RESOLVE_NO_XDEV /* newer ones of <linux/fcntl.h> include it */
#define RESOLVE_NO_XDEV 0x01
#define RESOLVE_NO_MAGICLINKS 0x02
#define RESOLVE_NO_SYMLINKS 0x04
#define RESOLVE_BENEATH 0x08
#define RESOLVE_IN_ROOT 0x10
#endif

/* <linux/mount.h>: Linux 5.2; struct mount_attr 5.12. */
struct sys_mount_attr {
    uint64_t attr_set, attr_clr, propagation, userns_fd;
};
enum {
    OPEN_TREE_CLONE = 1,
    OPEN_TREE_CLOEXEC = 02000000, /* O_CLOEXEC */
    MOVE_MOUNT_F_EMPTY_PATH = 0x04,
    MOVE_MOUNT_T_EMPTY_PATH = 0x40,
    FSOPEN_CLOEXEC = 1,
    FSPICK_CLOEXEC = 1,
    FSPICK_SYMLINK_NOFOLLOW = 2,
    FSPICK_NO_AUTOMOUNT = 4,
    FSMOUNT_CLOEXEC = 1,
    FSCONFIG_SET_FLAG = 0,
    FSCONFIG_SET_STRING = 1,
    FSCONFIG_CMD_CREATE = 6,
    FSCONFIG_CMD_RECONFIGURE = 7,
};
enum {
    MOUNT_ATTR_RDONLY = 0x01,
    MOUNT_ATTR_NOSUID = 0x02,
    MOUNT_ATTR_NODEV = 0x04,
    MOUNT_ATTR_NOEXEC = 0x08,
    MOUNT_ATTR_IDMAP = 0x00100000,
};

#endif
