/* pidns_below.c: makes a pid namespace below one that was joined, instead of below the caller's.
 *
 * A process that joins a pid namespace stays outside; only its children are inside. Nor can it create a pid
 * namespace nested in any but its own (EINVAL, pid_namespaces(7)). So a helper in the joined one makes the new one,
 * and pid 1 in it. The mediator then has its further children there, and learns their numbers in its own namespace,
 * which is the caller's. Only pid 1's number arrives at the helper, as a number in the joined namespace; so pid 1
 * comes with a pidfd.
 */
#include "process.h"

struct below {
    struct job *job;
    pid1_maker *make;
    int is_over; /* the helper has done what it could */
    int error;   /* 0, or -errno */
    uint32_t step;
    int fd; /* of the new namespace, or -1 */
};

/* Runs in the joined namespace, with the mediator's memory and descriptors. */
static int make_below(struct below *b)
{
    b->step = NSBOX_STEP_UNSHARE;
    int ret = sys_unshare(CLONE_NEWPID);
    if (ret < 0)
        return ret;
    b->step = NSBOX_STEP_INIT;
    ret = (int)b->make(b->job, CLONE_PARENT | CLONE_PIDFD, &b->job->init.pidfd);
    /* Through our own entry: pid 1's is refused as long as it shares memory that isn't dumpable. */
    if (ret >= 0)
        ret = b->fd = sys_openat(AT_FDCWD, "/proc/self/ns/pid_for_children", O_RDONLY, 0);
    return ret < 0 ? ret : 0;
}

static void below_main(void *arg)
{
    struct below *b = arg;
    b->error = make_below(b);
    b->is_over = 1;
    sys_exit(0);
}

/* Reads a pid; 0 if it is none: pids end at 2^22 (PID_MAX_LIMIT). */
static int digits(const char *text)
{
    int number = 0;
    for (; *text >= '0' && *text <= '9' && number <= 1 << 22; text++)
        number = number * 10 + *text - '0';
    return number <= 1 << 22 ? number : 0;
}

/* Does /proc belong to our pid namespace? Then the numbers in it do too. */
static int check_proc(void)
{
    char self[16];
    long n = sys_readlinkat(AT_FDCWD, "/proc/self", self, sizeof self - 1);
    self[n < 0 ? 0 : n] = 0;
    return digits(self) == sys_getpid() ? 0 : -ENOENT;
}

/* Returns a process's number in our pid namespace. The entry of a pidfd has a line for it: "Pid:\t12"
 * (proc_pid_fdinfo(5)), 0 for a process in another namespace, -1 for one that has gone. */
static int number_of(int pidfd)
{
    static const char name[] = "\nPid:\t";
    char path[48], text[512];
    put_uint(put_str(path, "/proc/self/fdinfo/"), (uint64_t)pidfd, 10);
    int fd = sys_openat(AT_FDCWD, path, O_RDONLY, 0);
    if (fd < 0)
        return fd;
    long n = sys_read(fd, text, sizeof text - 1);
    sys_close(fd);
    text[n < 0 ? 0 : n] = 0;
    for (const char *line = text; *line; line++) {
        unsigned same = 0;
        while (name[same] && line[same] == name[same])
            same++;
        if (!name[same])
            return digits(line + same) ? digits(line + same) : -ESRCH;
    }
    return -ESRCH;
}

/* Takes pid 1's number first: if anything else fails, the caller has to end it. */
static int take_over(struct job *j, const struct below *b, int *number)
{
    int own_number = j->init.pidfd < 0 ? 0 : number_of(j->init.pidfd);
    TRY(&j->b, NSBOX_STEP_INIT, own_number);
    *number = own_number;
    TRY(&j->b, b->step, b->error);
    TRY(&j->b, NSBOX_STEP_JOIN, sys_setns(b->fd, CLONE_NEWPID));
    return 0;
}

int clone_below(struct job *j, unsigned long flags, int *number, pid1_maker *make)
{
    j->map_program.pid = 0; /* that process has been reaped, and must not be waited for again if there is no helper */
    TRY(&j->b, NSBOX_STEP_INIT, check_proc());
    struct below b;
    b.job = j;
    b.make = make;
    b.is_over = 0;
    b.error = -EINTR; /* if it is killed */
    b.step = NSBOX_STEP_INIT;
    b.fd = -1;
    /* Its child becomes its sibling: ours, or the caller's, which then reaps the helper too. */
    unsigned long whose = flags & CLONE_PARENT;
    long pid = clone_sharer(&j->map_program, CLONE_VFORK | CLONE_FILES | whose, j->stacks.helper, below_main, &b);
    TRY(&j->b, NSBOX_STEP_INIT, (int)pid);
    if (!whose)
        sys_waitid(P_PID, (int)pid, 0, WEXITED | __WALL);
    if (!b.is_over && j->init.pidfd < 0) /* it was killed before any process could clear this */
        *init_word(j) = 0;
    int ret = take_over(j, &b, number);
    sys_close(b.fd);
    return ret;
}
