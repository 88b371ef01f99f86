/* hold.c: the set-up stops, shows what is there to the process that holds the request, and waits for its word. */
#include "job.h"
#include "kernel/message.h"

enum { MOST_FDS = 7, HEAD = 16 };

/* Sends a byte, and descriptors with it, through a unix socket (unix(7)). */
int send_fds(int socket, const int *fds, unsigned n)
{
    struct {
        size_t len;
        int level, type, fds[MOST_FDS];
    } control;
    _Static_assert((int)MOST_FDS >= (int)NSBOX_SHOWN, "all have a place");
    char byte = 0;
    struct iovec data = {&byte, 1};
    struct message message = {.iov = &data, .n_iov = 1, .control = &control, .n_control = HEAD + sizeof *fds * n};
    control.len = message.n_control;
    control.level = 1; /* SOL_SOCKET */
    control.type = 1;  /* SCM_RIGHTS */
    for (unsigned i = 0; i < n; i++)
        control.fds[i] = fds[i];
    int ret = sys_sendmsg(socket, &message);
    return ret < 0 ? ret : 0;
}

/* Waits for a byte, and n descriptors with it, which get numbers from 3 up. Returns 0 or -errno, and then there are
 * none. -EPIPE: nobody can send any more. */
int receive_fds(int socket, int *fds, unsigned n)
{
    struct {
        size_t len;
        int level, type, fds[MOST_FDS];
    } control;
    char byte;
    struct iovec data = {&byte, 1};
    struct message message = {.iov = &data, .n_iov = 1, .control = &control, .n_control = HEAD + sizeof *fds * n};
    int ret;
    do
        ret = sys_recvmsg(socket, &message, 0x40000000 /* MSG_CMSG_CLOEXEC */);
    while (ret == -EINTR);
    if (ret <= 0)
        return ret < 0 ? ret : -EPIPE;
    unsigned got = message.n_control < HEAD ? 0 : (unsigned)((control.len - HEAD) / sizeof *fds);
    ret = got == n ? 0 : -EMFILE; /* no descriptor was free for the others */
    for (unsigned i = 0; i < got; i++) {
        fds[i] = move_high(control.fds[i]);
        ret = fds[i] < 0 ? fds[i] : ret;
    }
    for (unsigned i = 0; i < n && ret < 0; i++) {
        if (i < got)
            sys_close(fds[i]);
        fds[i] = -1;
    }
    return ret;
}

/* Sends the command's root and namespaces. The holder may not open them itself as long as the command shares memory
 * that isn't dumpable; each process may open its own. */
static int show(struct job *j)
{
    static const char *const names[NSBOX_SHOWN] = {
        0, "self/ns/cgroup", "self/ns/ipc", "self/ns/mnt", "self/ns/net", "self/ns/pid", "self/ns/uts"};
    int fds[NSBOX_SHOWN], ret = 0;
    unsigned n = 0;
    for (; n < NSBOX_SHOWN && ret >= 0; n++)
        ret = fds[n] = names[n] ? sys_openat(j->b.proc, names[n], O_RDONLY, 0)
                                : sys_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY, 0);
    if (ret >= 0)
        ret = send_fds(j->req->report_fd, fds, n);
    for (unsigned i = 0; i < n; i++)
        sys_close(fds[i]);
    return ret;
}

/* Tells the holder of the request that the set-up has come this far, and waits for its word as long as the holder
 * and the caller are there. The death signal is set again: a change of ids, or of the user namespace, has cleared it
 * (commit_creds). */
int hold(struct job *j, int is_command, uint32_t *step)
{
    char byte = 0;
    if (j->req->hold_fd < 0)
        return 0;
    *step = NSBOX_STEP_HOLD;
    long n = sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    if (n >= 0)
        n = is_command ? show(j) : sys_write(j->req->report_fd, &byte, 1);
    struct pollfd fds[2] = {{.fd = j->req->hold_fd, .events = POLLIN}, {.fd = j->lifeline, .events = POLLIN}};
    while (n >= 0 && !fds[0].revents && !fds[1].revents)
        if ((n = sys_ppoll(fds, 2, 0)) == -EINTR)
            n = 0;
    if (n >= 0)
        n = fds[1].revents ? -ESRCH : sys_read(j->req->hold_fd, &byte, 1);
    return n < 0 ? (int)n : n == 0 ? -EPIPE : 0;
}
