/* sys_mount.h: the system calls that make, move and change mounts, besides those of sys.h; part of the audit list. */
#ifndef NSBOX_SYS_MOUNT_H
#define NSBOX_SYS_MOUNT_H

#include "sys.h"

static inline int sys_open_tree(int dir, const char *path, unsigned flags)
{
    return (int)S3(__NR_open_tree, dir, path, flags | OPEN_TREE_CLOEXEC);
}
static inline int sys_open_tree_attr(int dir, const char *path, unsigned flags, struct sys_mount_attr *attr)
{
    return (int)S5(__NR_open_tree_attr, dir, path, flags | OPEN_TREE_CLOEXEC, attr, sizeof *attr);
}
/* Without a path, mounts on what dir itself refers to. A link at the path's end isn't followed. */
static inline int sys_move_mount(int from, int dir, const char *path)
{
    unsigned flags = MOVE_MOUNT_F_EMPTY_PATH | (*path ? 0 : MOVE_MOUNT_T_EMPTY_PATH);
    return (int)S5(__NR_move_mount, from, "", dir, path, flags);
}
static inline int sys_mount_setattr(int dir, const char *path, unsigned flags, struct sys_mount_attr *attr)
{
    return (int)S5(__NR_mount_setattr, dir, path, flags, attr, sizeof *attr);
}
static inline int sys_fsopen(const char *type)
{
    return (int)S2(__NR_fsopen, type, FSOPEN_CLOEXEC);
}
static inline int sys_fspick(int dir, const char *path)
{
    return (int)S3(__NR_fspick, dir, path, FSPICK_CLOEXEC | FSPICK_SYMLINK_NOFOLLOW | FSPICK_NO_AUTOMOUNT);
}
static inline int sys_fsconfig(int fs, unsigned cmd, const char *key, const void *value, int aux)
{
    return (int)S5(__NR_fsconfig, fs, cmd, key, value, aux);
}
static inline int sys_fsmount(int fs, unsigned attrs)
{
    return (int)S3(__NR_fsmount, fs, FSMOUNT_CLOEXEC, attrs);
}
static inline int sys_pivot_root(const char *new_root, const char *put_old)
{
    return (int)S2(__NR_pivot_root, new_root, put_old);
}
static inline int sys_umount2(const char *path, int flags)
{
    return (int)S2(__NR_umount2, path, flags);
}

#endif
