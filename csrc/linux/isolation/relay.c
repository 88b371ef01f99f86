/* relay.c: shows a sandbox with a network list to the relay. The relay, a process of the caller's, makes its side of
 * the net namespace: see csrc/relay.
 *
 * The process that makes the net namespace shows it at once, so that the relay works while the mounts are made. Its
 * answer arrives before the command may look anything up.
 */
#include "net/wire.h"
#include "isolation.h"
#include "kernel/message.h"

enum { PATIENCE = 30 /* seconds, for a relay that was stopped */ };

/* Makes the socket for the relay's answer before there is an init: while the init uses the socket, it shares our
 * descriptors. */
int relay_prepare(struct job *j)
{
    if (!j->req->relay_later)
        TRY(&j->b, NSBOX_STEP_NET, sys_packet_pair(j->net.answer));
    return 0;
}

static int send_open(int relay, uint64_t id, int outlives, const int fds[3], unsigned n)
{
    struct {
        size_t len;
        int level, type, fds[4];
    } control = {.len = 16 + sizeof *fds * n, .level = 1 /* SOL_SOCKET */, .type = 1 /* SCM_RIGHTS */};
    nsbox_net_message open = {.kind = NSBOX_NET_OPEN, .value = outlives, .sandbox = id, .id = 0};
    struct iovec data = {&open, sizeof open};
    struct message message = {.iov = &data, .n_iov = 1, .control = &control, .n_control = control.len};
    for (unsigned i = 0; i < n; i++)
        control.fds[i] = fds[i];
    int ret = sys_sendmsg(relay, &message);
    return ret < 0 ? ret : 0;
}

/* Shows the relay a net namespace (a descriptor, or -errno), with this process as its first one. answer: the end of a
 * socket for the relay's answer; or -1: there will be none. Closes both. */
int relay_open(int relay, uint64_t id, int outlives, int net, int answer)
{
    const int fds[3] = {net, sys_pidfd_open(sys_getpid()), answer};
    int ret = fds[0] < 0 ? fds[0] : fds[1] < 0 ? fds[1] : send_open(relay, id, outlives, fds, answer < 0 ? 2 : 3);
    for (unsigned i = 0; i < 3; i++) /* our end for the answer too, so that it closes with the relay's */
        if (fds[i] >= 0)
            sys_close(fds[i]);
    return ret;
}

/* Runs in pid 1, which is in the net namespace. Before its exec no other process may open that namespace. */
int relay_show(struct job *j, int net)
{
    int answer = j->req->relay_later ? -1 : j->net.answer[1];
    j->net.answer[1] = -1;
    int outlives = (j->req->flags & NSBOX_OUTLIVE) != 0;
    return relay_open(j->req->relay_fd, j->req->relay_id, outlives, net, answer);
}

/* Waits for the relay's answer. Returns 0, or the error that it reports; its words go to detail. lifeline: a pidfd of
 * the process for which this is done, or -1. */
int relay_answer(int answer, int lifeline, char *detail, size_t room)
{
    nsbox_net_event ready;
    const int64_t patience[2] = {PATIENCE, 0};
    struct pollfd fds[2] = {{.fd = answer, .events = POLLIN}, {.fd = lifeline, .events = POLLIN}};
    int ret = sys_ppoll(fds, 2, patience);
    if (ret <= 0 || fds[1].revents)
        return ret < 0 ? ret : ret == 0 ? -ETIMEDOUT : -ESRCH;
    long n = sys_read(answer, &ready, sizeof ready);
    if (n != sizeof ready || ready.head.kind != NSBOX_NET_READY)
        return n < 0 ? (int)n : -EPIPE; /* the relay has ended */
    unsigned i = 0;
    for (; ready.head.value < 0 && i < room - 1 && i < sizeof ready.name && ready.name[i]; i++)
        detail[i] = ready.name[i];
    detail[i] = 0;
    return ready.head.value < 0 ? ready.head.value : 0;
}

int relay_await(struct job *j)
{
    if (j->req->relay_later)
        return 0;
    TRY(&j->b, NSBOX_STEP_NET, relay_answer(j->net.answer[0], j->lifeline, j->res->detail, sizeof j->res->detail));
    sys_close(j->net.answer[0]); /* the number stays known: the command closes its copy */
    return 0;
}
