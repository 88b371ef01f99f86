/* control.c: messages from and to the caller. We never wait for it: events that it doesn't read are only counted. */
#include "control.h"
#include "events.h"
#include "publish.h"
#include "relay.h"
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_WAITING = 64, BATCHES = 2, MOST_DESCRIPTORS = 3 };

static struct source control = {.fd = -1}, caller = {.fd = -1};
static uint32_t lost; /* events so far that weren't taken in time */

int control_is_over(void)
{
    return control.fd < 0;
}

static int give(const void *message, size_t size)
{
    return control.fd < 0 || send(control.fd, message, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

static void put_text(char to[NSBOX_NET_NAME_SIZE], const char *text)
{
    memcpy(to, text, strnlen(text, NSBOX_NET_NAME_SIZE - 1));
}

void tell_ready(int answer, uint64_t sandbox, int error, const char *step)
{
    nsbox_net_event ready = {.head = {.kind = NSBOX_NET_READY, .value = error, .sandbox = sandbox}};
    put_text(ready.name, error ? step : "");
    if (answer < 0) {
        give(&ready, sizeof ready);
        return;
    }
    send(answer, &ready, sizeof ready, MSG_DONTWAIT | MSG_NOSIGNAL); /* the first message to it: there is room */
    close(answer);
}

static void put_target(nsbox_net_event *to, const union target *target)
{
    if (target && target->any.sa_family == AF_INET) {
        to->family = 4;
        memcpy(to->address, &target->four.sin_addr, 4);
    } else if (target && target->any.sa_family == AF_INET6) {
        to->family = 6;
        memcpy(to->address, &target->six.sin6_addr, 16);
    }
}

static uint64_t wall_clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

int tell_ask(const struct ask *ask)
{
    const struct destination *to = &ask->to;
    const union target target = {.four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(to->address)}};
    nsbox_net_event question = {.head = {.kind = NSBOX_NET_ASK, .sandbox = ask->sandbox->id, .id = ask->id},
                                .time = wall_clock(),
                                .what = NSBOX_NET_CONNECT,
                                .reason = NSBOX_NET_NOT_LISTED,
                                .protocol = (uint32_t)to->protocol,
                                .port = to->port};
    put_target(&question, to->name ? NULL : &target);
    put_text(question.name, to->name ? to->name->text : "");
    return give(&question, sizeof question);
}

void tell(const struct event *event)
{
    nsbox_net_event to = {.head = {.kind = NSBOX_NET_EVENT,
                                   .value = (int32_t)(lost & INT32_MAX),
                                   .sandbox = event->sandbox ? event->sandbox->id : 0,
                                   .id = event->id},
                          .time = wall_clock(),
                          .what = event->what,
                          .verdict = event->verdict,
                          .reason = event->reason,
                          .error = event->error,
                          .protocol = (uint32_t)event->protocol,
                          .port = event->port,
                          .milliseconds = (uint32_t)event->milliseconds,
                          .sent = event->sent,
                          .received = event->received};
    put_target(&to, event->target);
    put_text(to.name, event->name ? event->name : "");
    put_text(to.sni, event->sni ? event->sni : "");
    lost += !give(&to, sizeof to);
}

/* The descriptors that came with a message; those that aren't needed are closed. */
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

/* A caller that waits until everything is reported. What has happened by now comes in this batch of events or the next. */
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
        sandbox_open(message->sandbox, fds[0], fds[1], fds[2]);
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

static void let_go(struct source *source, uint32_t events)
{
    (void)source;
    (void)events;
    loop_close(&control);
    loop_close(&caller);
    asks_refuse_all();
    publications_end(EVERY_SANDBOX);
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
        let_go(source, events);
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
    caller = (struct source){let_go, process, NULL};
    int ret = loop_add(&control, EPOLLIN);
    return ret ? ret : loop_add(&caller, EPOLLIN);
}
