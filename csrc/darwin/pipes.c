/* pipes.c: the pipes through which commands report, and how other processes are kept from holding them.
 *
 * The end of a pipe tells that the command has executed its program, so only the command may keep the write end.
 * macOS has no pipe2(2): between pipe(2) and fcntl(2) another thread can fork a process, which would keep the pipe
 * through its exec. One that is forked and doesn't execute (multiprocessing) keeps all pipes in any case. Python
 * makes the pipe where it keeps its own threads from starting anything; nothing can be done about posix_spawn(2) by
 * threads of other libraries. So a thread that forks in this program, by the C library's fork(3), waits until no
 * pipe is half made, and the child closes those of the other threads.
 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int once_error;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct report_pipe *pipes; /* of all threads */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* Runs in a forked child. The other threads' stacks still exist as they were, though the threads don't. */
static void after_fork_in_child(void)
{
    for (struct report_pipe *p = pipes; p; p = p->next)
        for (int i = 0; i < 2; i++)
            if (p->ends[i] >= 0 && !pthread_equal(p->owner, pthread_self()))
                close(p->ends[i]);
    pipes = NULL;
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    once_error = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

int set_cloexec(int fd, int yes)
{
    return fcntl(fd, F_SETFD, yes ? FD_CLOEXEC : 0) < 0 ? -errno : 0;
}

/* Moves a descriptor from 3 up if it is lower, where the command's stdio would overwrite it. */
int move_high(int *fd)
{
    if (*fd > 2)
        return 0;
    int high = fcntl(*fd, F_DUPFD_CLOEXEC, 3);
    int ret = high < 0 ? -errno : 0;
    close(*fd);
    *fd = high;
    return ret;
}

/* Opens a pipe without the lock: in a process with other threads only report_pipe_open() may call it. */
int pipe_open(int ends[2])
{
    if (pipe(ends) < 0)
        return -errno;
    int ret = 0;
    for (int i = 0; i < 2; i++) {
        int moved = move_high(&ends[i]);
        if (moved >= 0)
            moved = set_cloexec(ends[i], 1);
        if (moved < 0)
            ret = moved;
    }
    if (ret < 0)
        for (int i = 0; i < 2; i++) {
            if (ends[i] >= 0)
                close(ends[i]);
            ends[i] = -1;
        }
    return ret;
}

/* Closes ends that no other process can know of yet. */
void report_pipe_drop(struct report_pipe *p)
{
    for (int i = 0; i < 2; i++) {
        if (p->ends[i] > 2)
            close(p->ends[i]);
        p->ends[i] = -1;
    }
}

int report_pipe_open(struct report_pipe *p)
{
    pthread_once(&once, watch_forks);
    if (once_error)
        return -once_error;
    pthread_mutex_lock(&lock);
    int ret = p->ends[1] > 2 ? 0 : pipe_open(p->ends);
    if (ret >= 0) {
        p->owner = pthread_self();
        p->next = pipes;
        pipes = p;
    }
    pthread_mutex_unlock(&lock);
    return ret;
}

/* Closes an end under the lock: a child that is forked just then must not close what another thread opens with this
 * number. */
void report_pipe_close(struct report_pipe *p, int end)
{
    pthread_mutex_lock(&lock);
    close(p->ends[end]);
    p->ends[end] = -1;
    pthread_mutex_unlock(&lock);
}

void report_pipe_forget(struct report_pipe *p)
{
    pthread_mutex_lock(&lock);
    struct report_pipe **at = &pipes;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    pthread_mutex_unlock(&lock);
}
