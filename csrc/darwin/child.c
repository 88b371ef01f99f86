/* child.c: the chronology of a command, from the fork to the exec. When something happens is decided here; how, elsewhere.
 *
 * It is that of CPython's child_exec; and the lifeline comes before the confinement, which forbids it, and the confinement
 * before anything that the caller has written, Python code or the program. */
#include "child.h"

#include <errno.h>
#include <unistd.h>

#include "darwin/system/seatbelt.h"

static _Noreturn void give_up(const struct job *j, int error)
{
    report_send(j->report, -error, j->step);
    _exit(127);
}

/* What isn't affected by the confinement, or couldn't be done in it. */
static int prepare(struct job *j)
{
    int ret = set_stdio(j);
    if (ret < 0)
        return ret;
    default_signals(j->req);
    ret = set_session(j);
    if (ret >= 0 && j->req->flags & NSBOX_LIFELINE)
        ret = tie_to_caller(j); /* by a process with the ids that we have now */
    if (ret >= 0)
        ret = enter_cwd(j); /* likewise, as CPython does */
    if (ret >= 0)
        ret = set_ids(j);
    return ret;
}

/* After the descriptors have been closed: the limit of how many there may be could hide some of them. */
static int finish(struct job *j)
{
    int ret = set_descriptors(j);
    return ret < 0 ? ret : set_limits(j);
}

/* Says so, with signals still blocked: what ends us before that is no end of a command. */
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

/* The mask is as that code has left it. */
void child_after_preexec(struct job *j, int failed)
{
    j->step = NSBOX_STEP_PREEXEC;
    int ret = failed ? -EINVAL : 0;
    if (ret >= 0 && j->req->flags & NSBOX_SETSID_LAST && setsid() < 0 && getsid(0) != getpid()) { /* else done there */
        j->step = NSBOX_STEP_SESSION;
        ret = -EPERM;
    }
    if (ret >= 0)
        ret = finish(j);
    if (ret >= 0)
        ret = start_program(j);
    give_up(j, ret);
}
