/* refused.c: finds out which of the calls that a sandbox needs are refused by a filter. For the caller, when
 * something has failed.
 *
 * Each call is made with arguments that do nothing, by a process in namespaces of its own, where it may mount: an
 * EPERM there comes from a filter. A filter that kills, kills that process; the call has been noted before.
 */
#include "calls.h"
#include "kernel/sys_mount.h"

static int try_call(unsigned i)
{
    struct sys_mount_attr attr = {.attr_set = 0};
    switch (i) {
    case NSBOX_CALL_MOUNT_SETATTR:
        return sys_mount_setattr(-1, "", ~0U, &attr);
    case NSBOX_CALL_MOVE_MOUNT:
        return sys_move_mount(-1, -1, "");
    case NSBOX_CALL_OPEN_TREE:
        return sys_open_tree(-1, "", ~0U);
    case NSBOX_CALL_FSOPEN:
        return sys_fsopen(0);
    case NSBOX_CALL_FSCONFIG:
        return sys_fsconfig(-1, ~0U, 0, 0, 0);
    case NSBOX_CALL_FSMOUNT:
        return sys_fsmount(-1, 0);
    case NSBOX_CALL_PIVOT_ROOT:
        return sys_pivot_root(0, 0);
    case NSBOX_CALL_UMOUNT2:
        return sys_umount2("", ~0);
    case NSBOX_CALL_SETNS:
        return sys_setns(-1, 0);
    case NSBOX_CALL_PIDFD_OPEN:
        return sys_pidfd_open(-1);
    case NSBOX_CALL_CLOSE_RANGE:
        return sys_close_range(1, 0);
    default:
        return sys_execveat(-1, "", 0, 0, AT_EMPTY_PATH);
    }
}

static void try_all(void *arg)
{
    int32_t *errors = arg;
    for (unsigned i = 0; i < NSBOX_CALLS; i++) {
        errors[i] = -1; /* until it returns */
        int ret = try_call(i);
        errors[i] = ret == -ENOSYS || ret == -EPERM ? -ret : 0;
    }
    sys_exit(0);
}

int nsbox_refused_calls(int32_t *errors, uint8_t *stack, uint64_t size)
{
    sys_sigset all = ~(sys_sigset)0, mask;
    int pid = 0, tid = 0;
    for (unsigned i = 0; i < NSBOX_CALLS; i++)
        errors[i] = 0;
    sys_sigprocmask(SIG_SETMASK, &all, &mask);
    long made = arch_clone(CLONE_NEWUSER | CLONE_NEWNS | CLONE_VM, stack + size, &pid, &tid, try_all, errors);
    while (made > 0 && sys_waitid(P_PID, (int)made, 0, WEXITED | __WALL) == -EINTR)
        continue;
    sys_sigprocmask(SIG_SETMASK, &mask, 0);
    return made < 0 ? (int)made : 0;
}
