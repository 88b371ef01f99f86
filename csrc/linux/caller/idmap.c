/* idmap.c: user namespaces for idmapped mounts, which make the files of one user the sandbox's own
 * (mount_setattr(2), Linux 5.12). For the caller, before a spawn.
 */
#include "calls.h"
#include "isolation/isolation.h"
#include "kernel/sys_mount.h"

struct waiter {
    uint32_t gate; /* futex */
    uint32_t tid;
    uint32_t is_named; /* futex */
    char name[16];     /* its number in /proc, or "" */
};

/* Stays in the namespace while the caller writes its maps. */
static void wait_for_maps(void *arg)
{
    struct waiter *w = arg;
    sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    sys_readlinkat(AT_FDCWD, "/proc/self", w->name, sizeof w->name - 1);
    __atomic_store_n(&w->is_named, 1, __ATOMIC_RELEASE);
    sys_futex_wake(&w->is_named);
    while (!__atomic_load_n(&w->gate, __ATOMIC_ACQUIRE))
        sys_futex_wait(&w->gate, 0, 0);
    sys_exit(0);
}

/* Returns when the process has written its name, or has been killed. */
static void await_name(const struct waiter *w)
{
    const int64_t moment[2] = {0, 10000000}; /* struct timespec: 10 ms */
    while (!__atomic_load_n(&w->is_named, __ATOMIC_ACQUIRE) && __atomic_load_n(&w->tid, __ATOMIC_ACQUIRE))
        sys_futex_wait(&w->is_named, 0, moment);
}

/* Returns a descriptor of the mapped namespace, or -errno. name: the process's in /proc. That may belong to another
 * pid namespace than the caller's, in which the process has another number. */
static int mapped(const char *name, const char *uids, const char *gids)
{
    uint32_t step;
    if (!*name)
        return -ENOENT;
    char path[48], *tail = put_str(put_str(put_str(path, "/proc/"), name), "/");
    int ret = write_maps(AT_FDCWD, path, uids, gids, 0, &step);
    put_str(tail, "ns/user");
    return ret < 0 ? ret : sys_openat(AT_FDCWD, path, O_RDONLY | SYS_O_CLOEXEC, 0);
}

enum { HIGH = 64 };

int nsbox_idmap(const char *uids, const char *gids, uint8_t *stack, uint64_t size)
{
    sys_sigset all = ~(sys_sigset)0, mask;
    struct waiter w = {0, 1, 0, {0}};
    int pid = 0;
    sys_sigprocmask(SIG_SETMASK, &all, &mask);
    long made = arch_clone(CLONE_NEWUSER | CLONE_VM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, stack + size, &pid,
                           (int *)(void *)&w.tid, wait_for_maps, &w);
    if (made > 0)
        await_name(&w);
    int ret = made < 0 ? (int)made : mapped(w.name, uids, gids);
    __atomic_store_n(&w.gate, 1, __ATOMIC_RELEASE);
    sys_futex_wake(&w.gate);
    while (made > 0 && sys_waitid(P_PID, (int)made, 0, WEXITED | __WALL) == -EINTR)
        continue;
    sys_sigprocmask(SIG_SETMASK, &mask, 0);
    if (ret < 0)
        return ret;
    /* It stays open. Low numbers are those that programs count on, or close and open again. */
    int high = sys_dupfd_cloexec(ret, HIGH);
    if (high < 0 && ret > 2)
        return ret;
    if (high < 0)
        high = sys_dupfd_cloexec(ret, 3);
    sys_close(ret);
    return high;
}

int nsbox_try_idmap(const char *path, int userns)
{
    int tree = sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | AT_RECURSIVE);
    if (tree < 0) /* EINVAL of this call means something else */
        return tree == -EINVAL ? -EIO : tree;
    struct sys_mount_attr attr = {.attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (unsigned)userns};
    int ret = sys_mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr);
    sys_close(tree);
    return ret;
}
