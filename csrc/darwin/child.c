/* child.c: the order of a command's steps, from the fork to the exec. This file decides when something happens; how
 * is decided elsewhere.
 *
 * The order is that of CPython's child_exec, with two additions. The lifeline comes before the confinement, which
 * forbids it. The confinement comes before anything that the caller wrote, Python code or the program.
 */
#include "child.h"

#include <errno.h>
#include <unistd.h>

#include "darwin/system/seatbelt.h"

static _Noreturn void give_up(const struct job *j, int error)
{
    report_send(j->report, -error, j->step);
    _exit(127);
}

/* Does what the confinement doesn't affect, or wouldn't allow. */
static int prepare(struct job *j)
{
    int ret = set_stdio(j);
    if (ret < 0)
        return ret;
    default_signals(j->req);
    ret = set_session(j);
    if (ret >= 0 && j->req->flags & NSBOX_LIFELINE)
        ret = tie_to_caller(j); /* the process that does so has our present ids */
    if (ret >= 0)
        ret = enter_cwd(j); /* with our present ids too, as CPython does */
    if (ret >= 0)
        ret = set_ids(j);
    return ret;
}

/* Sets the limits only after the descriptors have been closed: a limit on their number could hide some of them. */
static int finish(struct job *j)
{
    int ret = set_descriptors(j);
    return ret < 0 ? ret : set_limits(j);
}

/* Confines the command, and reports that while signals are still blocked: if something ends us before the report,
 * that isn't the end of a command. */
static int confine(struct job *j)
{
    j->step = NSBOX_STEP_SANDBOX;
    int ret = j->req->profile ? seatbelt_apply(j->req->profile) : 0;
    if (ret >= 0)
        ret = report_send(j->report, 0, NSBOX_STEP_NONE);
    if (ret >= 0)
        unblock_signals(j);
    return ret;
}

static int start_program(struct job *j)
{
    const nsbox_request *r = j->req;
    j->step = NSBOX_STEP_EXEC;
    return execute(r->programs, r->argv, r->envp);
}

int child(struct job *j)
{
    uint32_t flags = j->req->flags;
    int ret = prepare(j);
    if (ret >= 0 && !(flags & NSBOX_PREEXEC))
        ret = finish(j);
    if (ret >= 0 && flags & NSBOX_BY_HELPER)
        give_up(j, hand_over(j));
    if (ret >= 0)
        ret = confine(j);
    if (ret >= 0 && flags & NSBOX_PREEXEC) {
        if (j->devnull > 2)
            close(j->devnull);
        if (j->req->after_fork)
            j->req->after_fork();
        return 1; /* nsbox_spawn() returns, to the caller's Python code */
    }
    if (ret >= 0)
        ret = start_program(j);
    give_up(j, ret);
}

/* Goes on after preexec_fn. The signal mask is as that code left it. */
void child_after_preexec(struct job *j, int failed)
{
    j->step = NSBOX_STEP_PREEXEC;
    int ret = failed ? -EINVAL : 0;
    if (ret >= 0 && j->req->flags & NSBOX_SETSID_LAST && setsid() < 0 &&
        getsid(0) != getpid()) { /* else it was done there */
        j->step = NSBOX_STEP_SESSION;
        ret = -EPERM;
    }
    if (ret >= 0)
        ret = finish(j);
    if (ret >= 0)
        ret = start_program(j);
    give_up(j, ret);
}
