/* control.c: the caller's messages, and how each is carried out. */
#include "control.h"
#include "relay/base/events.h"
#include "relay/base/relay.h"
#include "relay/connections/publish.h"
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_WAITING = 64, BATCHES = 2, MOST_DESCRIPTORS = 3 };

static struct source control = {.fd = -1}, caller = {.fd = -1};

/* Take the descriptors that came with a message; those that aren't wanted are closed. Returns how many there are. */
static int take(struct msghdr *message, int fds[MOST_DESCRIPTORS])
{
    int n = 0;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t at = 0; at + sizeof(int) <= head->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int fd;
            memcpy(&fd, CMSG_DATA(head) + at, sizeof fd);
            if (n < MOST_DESCRIPTORS)
                fds[n++] = fd;
            else
                close(fd);
        }
    }
    return n;
}

/* Sockets that wait until everything so far is reported. What has happened by then arrives in this batch of events
 * or in the next one. */
static struct {
    int answer, batches;
} waiting[MOST_WAITING];
static int n_waiting;

static void settle(int answer)
{
    if (n_waiting == MOST_WAITING) {
        close(answer);
        return;
    }
    waiting[n_waiting].answer = answer;
    waiting[n_waiting++].batches = BATCHES;
}

int control_tick(void)
{
    for (int i = 0; i < n_waiting; i++) {
        if (waiting[i].batches-- > 0)
            continue;
        tell_ready(waiting[i].answer, 0, 0, "");
        waiting[i--] = waiting[--n_waiting];
    }
    return n_waiting > 0;
}

static void obey(const nsbox_net_message *message, int fds[MOST_DESCRIPTORS], int n)
{
    if (message->kind == NSBOX_NET_OPEN && n == MOST_DESCRIPTORS) {
        sandbox_open(message, fds[0], fds[1], fds[2]);
        return;
    }
    if (message->kind == NSBOX_NET_RULES && n == 2) {
        list_replace(fds[0], fds[1]);
        return;
    }
    if (message->kind == NSBOX_NET_SETTLE && n == 1) {
        settle(fds[0]);
        return;
    }
    if (message->kind == NSBOX_NET_PUBLISH && n == 1) {
        publish(message, fds[0]);
        return;
    }
    if (message->kind == NSBOX_NET_UNPUBLISH)
        unpublish(message->id);
    if (message->kind == NSBOX_NET_VERDICT)
        ask_answer(message->id, message->value == 1);
    while (n > 0)
        close(fds[--n]);
}

static void let_go(void)
{
    loop_close(&control);
    events_to(-1);
    asks_refuse_all();
    publications_end(EVERY_SANDBOX);
}

/* The first processes of its sandboxes end with it. They may be long in ending: each waits until its zombies have been
 * reaped, and in some containers nobody does that (zap_pid_ns_processes()). We don't wait for these. */
static void on_caller_end(struct source *source, uint32_t events)
{
    (void)events;
    loop_close(source);
    let_go();
    sandboxes_end_with_caller();
}

static void on_control(struct source *source, uint32_t events)
{
    nsbox_net_message message;
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
    struct iovec part = {&message, sizeof message};
    struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int fds[MOST_DESCRIPTORS];
    ssize_t n = recvmsg(source->fd, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        let_go();
        return;
    }
    int n_fds = take(&head, fds);
    if (n == sizeof message)
        obey(&message, fds, n_fds);
    else
        obey(&(nsbox_net_message){0}, fds, n_fds);
}

int control_start(int socket, int process)
{
    control = (struct source){on_control, socket, NULL};
    events_to(socket);
    caller = (struct source){on_caller_end, process, NULL};
    int ret = loop_add(&control, EPOLLIN);
    return ret ? ret : loop_add(&caller, EPOLLIN);
}
