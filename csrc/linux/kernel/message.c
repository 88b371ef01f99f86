/* message.c: descriptors that go from one process to another, through a unix socket. */
#include "message.h"
#include "abi.h"

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
 * none. -EPIPE: nobody can send any more. -EAGAIN: nobody has sent yet, with MSG_DONTWAIT. */
int receive_fds(int socket, int *fds, unsigned n, int flags)
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
        ret = sys_recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
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
