/* events.c: reports to the caller, without ever waiting for it: events that it doesn't accept are counted. */
#include "events.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int caller = -1; /* a socket to it */
static uint32_t lost;   /* how many events so far weren't accepted in time */

void events_to(int socket)
{
    caller = socket;
}

int control_is_over(void)
{
    return caller < 0;
}

static int give(const void *message, size_t size)
{
    return caller < 0 || send(caller, message, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
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
    send(answer, &ready, sizeof ready,
         MSG_DONTWAIT | MSG_NOSIGNAL); /* this is the first message on it: there is room */
    close(answer);
}

static void put_target(nsbox_net_event *to, const union address *target)
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
    const union address target = address_of(to->address);
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

/* Returns the errno to report. A client that we refuse by ICMP_POLICY gets EHOSTUNREACH. */
static int error_of(const struct event *event)
{
    return event->verdict == NSBOX_NET_REFUSED && event->error == EACCES ? EHOSTUNREACH : event->error;
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
                          .error = error_of(event),
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
