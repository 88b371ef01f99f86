/* command.c: the last steps before the user's program, in the order of CPython's child_exec. */
#include "process.h"
#include "kernel/directory.h"

static int session(const nsbox_request *r, uint32_t *step)
{
    *step = NSBOX_STEP_SESSION;
    int ret = r->flags & NSBOX_SETSID ? sys_setsid() : 0;
    if (ret < 0 || r->pgid < 0)
        return ret;
    *step = NSBOX_STEP_PGID;
    return sys_setpgid(0, r->pgid);
}

/* Gives the command its terminal before the exec, so that the program finds itself in the foreground. A background
 * group that does this gets SIGTTOU, so that is blocked (tcsetpgrp(3)). */
static int terminal(const nsbox_request *r, uint32_t *step)
{
    if (!r->terminal)
        return 0;
    *step = NSBOX_STEP_TERMINAL;
    int fd = (int)r->terminal - 1, group = sys_getpid();
    if (r->flags & NSBOX_SETSID)
        return sys_ioctl(fd, 0x540E /* TIOCSCTTY */, 0);
    return sys_ioctl(fd, 0x5410 /* TIOCSPGRP */, &group);
}

/* As in execvp(3), the shell's arguments are its name, the script and the command's own. argv has room for one more
 * before it. */
static int execute_script(const char *program, const char *const *argv, const char *const *envp)
{
    const char **args = (const char **)(uintptr_t)argv - 1, *name = args[1];
    args[0] = "/bin/sh";
    args[1] = program;
    int ret = sys_execve(args[0], args, envp);
    args[1] = name;
    return ret;
}

/* Executes the program; returns the error if it can't. The first error that says more than "not here" is the one to
 * report, as execvp does. */
static int execute(struct job *j, uint32_t *step)
{
    int error = 0, last = -ENOENT;
    const nsbox_request *r = j->req;
    *step = NSBOX_STEP_LIFELINE;
    await_watch(j);
    int ret = r->flags & NSBOX_PREEXEC ? death_signal_after_preexec(j) : death_signal(j);
    if (ret < 0)
        return ret;
    if (!(r->flags & NSBOX_PREEXEC)) /* preexec_fn may have changed it */
        unblock_signals(j);
    *step = NSBOX_STEP_SECCOMP;
    /* A filter may kill us at the exec. Our memory is a copy of the caller's, so nobody must get a dump of it; the
     * program that is executed is dumpable again (PR_SET_DUMPABLE(2const)). */
    if (r->flags & NSBOX_FORK_COMMAND && r->n_last_filters)
        sys_prctl(PR_SET_DUMPABLE, 0, 0);
    ret = install_filters(r, r->n_filters - r->n_last_filters, r->n_filters);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_EXEC;
    const char *const *envp = j->command.place ? j->command.place->envp : r->envp;
    if (r->flags & NSBOX_BY_FD)
        return sys_execveat(2, "", r->argv, envp, AT_EMPTY_PATH);
    for (const char *const *program = r->programs; *program; program++) {
        last = sys_execve(*program, r->argv, envp);
        if (last == -ENOEXEC && r->flags & NSBOX_SHELL)
            last = execute_script(*program, r->argv, envp);
        if (last >= 0) /* a filter only pretended: there was no exec */
            last = -EPERM;
        if (last != -ENOENT && last != -ENOTDIR && !error)
            error = last;
    }
    return error ? error : last;
}

static int enter_cwd(struct job *j, uint32_t *step)
{
    const nsbox_request *r = j->req;
    *step = NSBOX_STEP_CHDIR;
    for (uint32_t i = 0; i < r->n_places; i++) {
        j->command.place = &r->places[i];
        if (enter_directory(j->command.place->cwd) >= 0)
            return 0;
    }
    int ret = r->cwd && !r->n_places ? enter_directory(r->cwd) : 0;
    return r->flags & NSBOX_CWD_OPTIONAL ? 0 : ret;
}

/* Waits for the new root. No path may be looked up before, since the old root still lies on "/". pivot_root(2) has
 * changed our root, as it does for each process that had the old one.
 *
 * If the mediator has gone without a word it was killed, and the caller reports it. Perhaps the caller's thread had
 * ended, by an exec of another one: then we end here, in case we asked for a death signal too late. The root and we
 * are ready at about the same time, so look a while before sleeping: a sleep and its wake take longer.
 */
static int pass_gate(struct job *j)
{
    static const int64_t twenty_us[2] = {0, 20000};
    for (int looks = 0;; looks++) {
        uint32_t mediator = __atomic_load_n(&j->mediator, __ATOMIC_ACQUIRE);
        uint32_t gate = __atomic_load_n(&j->gate, __ATOMIC_ACQUIRE);
        int gone = gate == GATE_OPEN ? old_root_is_gone(&j->b) : 0;
        if (gone)
            return gone < 0 ? gone : sys_chdir("/");
        if (gate == GATE_ABORT || mediator == MEDIATOR_GONE) /* we looked at the root after reading that */
            return -ECANCELED;
        if (looks < 200 /* some 60 us */)
            sys_sched_yield();
        else if (gate == GATE_OPEN)
            sys_futex_wait(&j->gate, gate, twenty_us);
        else
            sys_futex_wait(&j->mediator, mediator, 0);
    }
}

/* Does what can be done before there is a root, and doesn't depend on the last user namespace. */
static int prepare(struct job *j, uint32_t *step, int32_t *op)
{
    const nsbox_request *r = j->req;
    /* Our parent is the thread that waits for us. Until our exec, we end when it does, even by an exec of the
     * caller. */
    *step = NSBOX_STEP_LIFELINE;
    int ret = sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    /* The caller may have ended before. With an init that ends with the caller, so do we; an init that may outlive
     * it knows that by now. */
    int ends_with_init = has_init(j) && !(r->flags & NSBOX_OUTLIVE);
    if (ret >= 0 && !(r->flags & NSBOX_PLAIN) && !ends_with_init && caller_is_gone(j))
        ret = -ESRCH;
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_COMMAND;
    if ((ret = help_set_up(j)) < 0)
        return ret;
    /* Only the mediator may hold this end: when it closes, the init knows that the mediator has gone. */
    sys_close(j->setup_pipe[1]);
    *step = NSBOX_STEP_STDIO;
    ret = stdio(j);
    if (ret < 0)
        return ret;
    sys_umask(r->umask >= 0 ? (unsigned)r->umask : j->umask);
    default_signals(j);
    ret = session(r, step);
    if (ret >= 0)
        ret = terminal(r, step);
    if (ret < 0 || r->flags & NSBOX_UNCONFINED)
        return ret;
    if (is_warm(r)) {
        ret = net_join(j, step, op); /* this requires power over the first user namespace */
        if (ret >= 0)
            ret = enter_second_userns(j, step);
        if (ret < 0)
            return ret;
    }
    if (!has_second_userns(r))
        ret = limit_bounding_set(bounding_set(r) | kept_caps(r), r->flags & NSBOX_PLAIN, step);
    if (ret >= 0)
        ret = limit_core(r, step);
    return ret < 0 ? ret : install_early_filters(r, step);
}

/* Gives the command a fresh host name and net namespace, since power over these is power in the user namespace that
 * they were made in. The name is carried over. Pid 1 stays in the old ones, since all may read its /proc/1/net. */
static int renew_namespaces(struct job *j, uint32_t *step, int32_t *op)
{
    const nsbox_request *r = j->req;
    if (!r->caps || !r->caps->permitted || r->user2_fd >= 0)
        return 0;
    *step = NSBOX_STEP_UNSHARE;
    int ret = r->namespaces & CLONE_NEWUTS ? sys_unshare(CLONE_NEWUTS) : 0;
    if (ret < 0 || !makes_net(r))
        return ret;
    ret = make_net(j);
    *step = j->net.step;
    *op = ret < 0 ? j->net.op : -1;
    return ret;
}

/* Setting ids clears the death signal (commit_creds), and so does entering a user namespace. */
static int renew_death_signal(const struct job *j, uint32_t *step)
{
    if (!(j->req->flags & NSBOX_DIE_WITH_THREAD))
        return 0;
    *step = NSBOX_STEP_LIFELINE;
    int ret = sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    return ret >= 0 && caller_is_gone(j) ? -ESRCH : ret;
}

/* Takes away all privileges. */
static int confine(struct job *j, uint32_t *step, int32_t *op)
{
    const nsbox_request *r = j->req;
    int ret = needs_root_first(r) ? pass_gate(j) : 0;
    /* The kernel mistakes a root with something mounted on it for a chroot, and refuses user namespaces there. */
    if (ret >= 0 && has_second_userns(r)) {
        ret = enter_second_userns(j, step);
        if (ret >= 0)
            ret = renew_namespaces(j, step, op);
        if (ret >= 0)
            ret = limit_bounding_set(bounding_set(r) | kept_caps(r), 0, step);
    }
    if (ret >= 0) {
        uint32_t last = r->n_filters - r->n_last_filters;
        *step = NSBOX_STEP_SECCOMP;
        ret = install_filters(r, last - r->n_confined_filters, last);
    }
    /* A command that will get other ids enters its directory with its present ones, as CPython does. */
    if (ret >= 0 && r->flags & NSBOX_FORK_COMMAND) {
        close_own_places(j);
        ret = enter_cwd(j, step);
    }
    if (ret >= 0)
        ret = set_ids(r, step);
    if (ret >= 0)
        ret = renew_death_signal(j, step);
    if (ret >= 0)
        ret = check_no_userns(r, step);
    return ret < 0 || r->flags & NSBOX_UNCONFINED ? ret : drop_capabilities(r, step);
}

static int start_program(struct job *j, uint32_t *step, int32_t *op)
{
    const nsbox_request *r = j->req;
    *step = NSBOX_STEP_FDS;
    int ret = descriptors(j);
    if (ret >= 0 && !needs_root_first(r) && !(r->flags & NSBOX_PLAIN))
        ret = pass_gate(j);
    if (ret >= 0 && !(r->flags & NSBOX_FORK_COMMAND))
        ret = enter_cwd(j, step);
    if (ret < 0)
        return ret;
    ret = landlock_confine(r, step, op);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_RLIMIT;
    if ((ret = set_limits(r)) < 0)
        return ret;
    return execute(j, step);
}

static _Noreturn void give_up(struct job *j, int error, uint32_t step, int32_t op)
{
    if (error != -ECANCELED) /* else the mediator reports it */
        report(j->res, error, step, op);
    sys_exit(127);
}

void command(void *arg)
{
    struct job *j = arg;
    uint32_t step = NSBOX_STEP_NONE;
    int32_t op = -1;
    int ret = prepare(j, &step, &op);
    if (ret >= 0 && !(j->req->flags & NSBOX_FORK_COMMAND) && !is_warm(j->req))
        ret = net_join(j, &step, &op);
    if (ret >= 0)
        ret = confine(j, &step, &op);
    if (ret >= 0)
        ret = hold(j, 1, &step);
    if (ret >= 0 && j->req->flags & NSBOX_PREEXEC) {
        step = NSBOX_STEP_LIFELINE;
        ret = death_signal(j);
    }
    if (ret >= 0 && j->req->flags & NSBOX_PREEXEC) {
        close_own(j);
        unblock_signals(j);
        arch_resume(&j->context); /* nsbox_spawn() returns */
    }
    if (ret >= 0)
        ret = start_program(j, &step, &op);
    give_up(j, ret, step, op);
}

void command_after_preexec(struct job *j, int failed)
{
    uint32_t step = NSBOX_STEP_PREEXEC;
    int32_t op = -1;
    int ret = failed ? -EINVAL : 0;
    if (ret >= 0 && j->req->flags & NSBOX_SETSID_LAST && sys_setsid() < 0 && sys_getsid(0) != sys_getpid()) {
        step = NSBOX_STEP_SESSION; /* it leads a process group; otherwise setsid(2) was done there */
        ret = -EPERM;
    }
    if (ret >= 0)
        ret = start_program(j, &step, &op);
    give_up(j, ret, step, op);
}
