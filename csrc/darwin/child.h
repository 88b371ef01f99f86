/* child.h: what the caller's side (spawn.c) and the command, up to its exec, share. */
#ifndef NSBOX_CHILD_H
#define NSBOX_CHILD_H

#include "darwin/system/system.h"

#include <pthread.h>
#include <signal.h>
#include <sys/types.h>

#include "calls.h"
#include "darwin/helper/helper.h"

/* Work space of one spawn, borrowed from Python: a command with PREEXEC needs it after its nsbox_spawn() has
 * returned. It is shared with the caller, which waits meanwhile. */
struct job {
    const nsbox_request *req;
    uint8_t *space; /* SPACE_BYTES for a list of descriptors */
    sigset_t mask;  /* the caller's signal mask, which the command gets back */
    pid_t caller;
    int report;     /* the write end */
    int devnull;    /* for stdio, or -1 */
    int profile_fd; /* with BY_HELPER: a copy of the request's, or -1 */
    uint32_t step;  /* what the command is doing */
};
enum { SPACE_BYTES = 65536 };

/* A pipe for reports, while the caller holds it. It is on the caller's stack. */
struct report_pipe {
    int ends[2];
    pthread_t owner;
    struct report_pipe *next;
};

/* pipes.c. Each returns 0 or -errno. */
int move_high(int *fd);
int pipe_open(int ends[2]);
int report_pipe_open(struct report_pipe *p);
void report_pipe_drop(struct report_pipe *p);
void report_pipe_close(struct report_pipe *p, int end);
void report_pipe_forget(struct report_pipe *p);

/* child.c */
int child(struct job *j);
_Noreturn void child_after_preexec(struct job *j, int failed);

/* command.c: steps of the command's. Each returns 0 or -errno, and sets j->step. */
int set_stdio(struct job *j);
void default_signals(const nsbox_request *r);
void unblock_signals(const struct job *j);
int set_session(struct job *j);
int set_ids(struct job *j);
int enter_cwd(struct job *j);
int set_limits(struct job *j);
int set_descriptors(struct job *j);

/* lifeline.c */
int tie_to_caller(struct job *j);
int hand_over(struct job *j);

#endif
