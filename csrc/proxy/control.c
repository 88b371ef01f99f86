/* control.c: messages from and to the caller, through a stream: macOS's Unix sockets don't keep packets apart.
 *
 * To us: nsbox_net_message, and after one of RULES `value` bytes, the list. From us: nsbox_net_event, whose size is
 * always the same. We never wait for the caller: events that it doesn't read in time are only counted.
 */
#include "proxy.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_EVENTS = 256, ROOM_FOR_READY = 80, MOST_SETTLING = 64, MOST_ACCOUNTS = 16384 };

struct rules list;
struct account *accounts;

static int control;
static uint16_t port;
static uint32_t lost; /* how many events so far weren't read in time */
static nsbox_net_event waiting[MOST_EVENTS];
static size_t sent; /* how many bytes of the first one */
static int n_waiting;

static uint64_t settling[MOST_SETTLING]; /* requests that wait until everything is reported */
static int n_settling;

static nsbox_net_message message;
static uint8_t *blob; /* the list that comes with it */
static size_t got;    /* bytes of both */

int control_start(int socket)
{
    control = socket;
    return set_nonblocking(socket);
}

void control_listening(uint16_t number)
{
    port = number;
}

short control_events(void)
{
    return (short)(POLLIN | (n_waiting ? POLLOUT : 0));
}

/* ---- from us */

static int flush(void)
{
    while (n_waiting) {
        ssize_t n = send(control, (const char *)waiting + sent, sizeof *waiting - sent, 0);
        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        sent += (size_t)n;
        if (sent < sizeof *waiting)
            continue;
        sent = 0;
        memmove(waiting, waiting + 1, (size_t)--n_waiting * sizeof *waiting);
    }
    return 1;
}

static int give(const nsbox_net_event *event, int room)
{
    if (n_waiting + room >= MOST_EVENTS)
        return 0;
    waiting[n_waiting++] = *event;
    flush(); /* if it fails, the loop will notice */
    return 1;
}

static uint64_t wall_clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void tell_ready(uint64_t id, int error)
{
    const nsbox_net_event ready = {
        .head = {.kind = NSBOX_NET_READY, .value = error, .id = id}, .time = wall_clock(), .port = port};
    give(&ready, 0);
}

static void put_target(nsbox_net_event *to, const struct client *c)
{
    const union address *target = &c->targets[c->winner];
    if (c->to.kind == TO_ADDRESS) {
        const uint32_t address = htonl(c->to.address);
        to->family = 4;
        memcpy(to->address, &address, 4);
    } else if (!c->n_targets) {
        return;
    } else if (target->any.sa_family == AF_INET) {
        to->family = 4;
        memcpy(to->address, &target->four.sin_addr, 4);
    } else {
        to->family = 6;
        memcpy(to->address, &target->six.sin6_addr, 16);
    }
}

void tell(const struct client *c, uint32_t what, uint32_t verdict, uint32_t reason, int error)
{
    nsbox_net_event to = {.head = {.kind = NSBOX_NET_EVENT,
                                   .value = (int32_t)(lost & INT32_MAX),
                                   .sandbox = c->account ? c->account->id : 0},
                          .time = wall_clock(),
                          .what = what,
                          .verdict = verdict,
                          .reason = reason,
                          .error = error,
                          .port = c->to.port,
                          .milliseconds = (uint32_t)(now() - c->started),
                          .sent = c->client.count,
                          .received = c->server.count};
    put_target(&to, c);
    memcpy(to.name, c->to.kind == TO_LOCALHOST ? "localhost" : c->to.name,
           c->to.kind == TO_LOCALHOST ? 10 : HELLO_NAME);
    memcpy(to.sni, c->watch.sni, sizeof to.sni);
    lost += !give(&to, ROOM_FOR_READY);
}

int tell_ask(const struct account *account, const struct ask *ask)
{
    nsbox_net_event question = {.head = {.kind = NSBOX_NET_ASK, .sandbox = account->id, .id = ask->id},
                                .time = wall_clock(),
                                .what = NSBOX_NET_CONNECT,
                                .reason = NSBOX_NET_NOT_LISTED,
                                .port = ask->to.port};
    const uint32_t address = htonl(ask->to.address);
    if (ask->to.kind == TO_ADDRESS) {
        question.family = 4;
        memcpy(question.address, &address, 4);
    }
    memcpy(question.name, ask->to.name, sizeof question.name);
    return give(&question, ROOM_FOR_READY);
}

void control_settle(void)
{
    for (int i = 0; i < n_settling; i++)
        tell_ready(settling[i], 0);
    n_settling = 0;
}

/* ---- to us */

struct account *account_of(uint64_t id, uint64_t secret)
{
    for (struct account *account = accounts; account; account = account->next)
        if (account->id == id)
            return account->secret == secret ? account : NULL;
    return NULL;
}

static void open_account(uint64_t id, uint64_t secret)
{
    int n = 0;
    for (struct account *account = accounts; account; account = account->next, n++)
        if (account->id == id)
            return;
    struct account *account = n < MOST_ACCOUNTS && secret && list.head ? calloc(1, sizeof *account) : NULL;
    if (!account)
        return;
    *account = (struct account){.id = id, .secret = secret, .next = accounts};
    accounts = account;
}

static void end_account(uint64_t id)
{
    struct account **link = &accounts, *account;
    while (*link && (*link)->id != id)
        link = &(*link)->next;
    account = *link;
    if (!account)
        return;
    for (struct client *c = clients; c; c = c->next)
        if (c->account == account && c->state != OVER) {
            if (c->state == RELAYING)
                tell(c, NSBOX_NET_CLOSE, NSBOX_NET_ALLOWED, 0, 0);
            client_end(c);
        }
    *link = account->next;
    asks_end(account);
    free(account);
}

static int replace_list(void)
{
    struct rules new;
    if (rules_read(&new, blob, (size_t)message.value) < 0)
        return -EINVAL;
    free((void *)(uintptr_t)list.head);
    list = new;
    blob = NULL;
    clients_judge();
    return 0;
}

static void obey(void)
{
    switch (message.kind) {
    case NSBOX_NET_RULES:
        tell_ready(message.id, replace_list());
        break;
    case NSBOX_NET_OPEN:
        open_account(message.sandbox, message.id); /* a sandbox without an account has no clients */
        break;
    case NSBOX_NET_END:
        end_account(message.sandbox);
        break;
    case NSBOX_NET_VERDICT:
        ask_answer(message.id, message.value == 1);
        break;
    case NSBOX_NET_SETTLE:
        if (n_settling < MOST_SETTLING)
            settling[n_settling++] = message.id;
        break;
    default:
        break;
    }
    free(blob);
    blob = NULL;
    got = 0;
}

/* Returns the size of what follows the message. */
static size_t extra(void)
{
    return message.kind == NSBOX_NET_RULES ? (size_t)(uint32_t)message.value : 0;
}

/* Read a part; 0: the caller has gone, or sends something else. */
static int take(int *is_more)
{
    uint8_t *to = (uint8_t *)&message + got;
    size_t left = sizeof message - got;
    if (got >= sizeof message) {
        size_t size = extra();
        if (size > NSBOX_NET_MOST || (!blob && !(blob = malloc(size ? size : 1))))
            return 0;
        to = blob + (got - sizeof message);
        left = size - (got - sizeof message);
    }
    ssize_t n = left ? recv(control, to, left, 0) : 0;
    *is_more = n > 0;
    if (left && n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    got += (size_t)n;
    if (got >= sizeof message && got == sizeof message + extra())
        obey();
    return 1;
}

int control_ready(short events)
{
    int is_more = 1;
    if (events & POLLOUT && !flush())
        return 0;
    if (!(events & (POLLIN | POLLHUP | POLLERR)))
        return 1;
    for (int i = 0; i < 64 && is_more; i++)
        if (!take(&is_more))
            return 0;
    return 1;
}
