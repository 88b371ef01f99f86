/* main.c: nsbox-proxy, started with only a socket to its caller, as descriptor 3. It ends when the caller has ended.
 *
 * Its parent isn't one of the caller's processes: the one that was started ends at once.
 */
#include "proxy.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

enum {
    CONTROL = 3,
    OWN = 3 /* descriptors that are polled besides the clients' */,
    TICK = 1000,
    PAUSE = 100,
    BACKLOG = 128
};
enum { FREE_DESCRIPTORS = 32 + MOST_TARGETS, MOST_DESCRIPTORS = 10240 /* OPEN_MAX: macOS refuses more */ };

struct client *clients;

static int listener, resolver, n_clients;
static int64_t paused_until; /* no client is accepted */
static struct pollfd *polled;
static size_t room;

int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- start */

static long limit_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 256;
    limit.rlim_cur = limit.rlim_max > MOST_DESCRIPTORS ? MOST_DESCRIPTORS : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    return (long)limit.rlim_cur;
}

static int leave_caller(void)
{
    pid_t pid = fork();
    if (pid)
        _exit(pid < 0);
    setsid();
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || chdir("/") < 0)
        return -errno;
    for (int fd = 0; fd < 3; fd++)
        if (fd != null && dup2(null, fd) < 0)
            return -errno;
    long most = limit_descriptors();
    for (int fd = CONTROL + 1; fd < most; fd++)
        close(fd);
    return 0;
}

static int start_listener(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || set_nonblocking(listener) < 0 ||
        bind(listener, (const struct sockaddr *)(const void *)&address, size) < 0 || listen(listener, BACKLOG) < 0 ||
        getsockname(listener, (struct sockaddr *)(void *)&address, &size) < 0)
        return -errno;
    control_listening(ntohs(address.sin_port));
    return 0;
}

/* ---- the loop */

static void add(int fd, short events, size_t *n)
{
    polled[(*n)++] = (struct pollfd){.fd = fd, .events = events};
}

/* Watch one side of a relayed connection. If nothing can be done about it now, it isn't watched: its end would be
 * reported again and again. */
static void add_side(int fd, short events, size_t *n)
{
    add(events ? fd : -1, events, n);
}

/* Gather what each client waits for. Returns how many there are, or 0: no memory. */
static size_t gather(void)
{
    size_t n = 0, most = OWN;
    for (struct client *c = clients; c; c = c->next)
        most += 1 + MOST_TARGETS;
    if (most > room) {
        struct pollfd *more = realloc(polled, 2 * most * sizeof *polled);
        if (!more)
            return 0;
        polled = more;
        room = 2 * most;
    }
    int is_full = n_clients >= MOST_CLIENTS || paused_until > now();
    add(is_full ? -1 : listener, POLLIN, &n);
    add(CONTROL, control_events(), &n);
    add(resolver, POLLIN, &n);
    for (struct client *c = clients; c; c = c->next) {
        c->polled_in = c->state;
        c->polled[0] = (int)n;
        if (c->state == RELAYING)
            add_side(c->client.fd, pump_events(c, 0), &n);
        else
            add(c->client.fd, pump_events(c, 0), &n);
        c->polled[1] = (int)n;
        if (c->state == RELAYING)
            add_side(c->server.fd, pump_events(c, 1), &n);
        for (int i = 0; c->state == CONNECTING && i < c->n_tries; i++)
            add(c->tries[i], POLLOUT, &n);
    }
    return n;
}

static void serve(struct client *c)
{
    const struct pollfd *client = &polled[c->polled[0]], *server = &polled[c->polled[1]];
    int n = c->n_tries;
    if (c->polled_in != c->state) /* the caller's answer changed it: what came is reported again */
        return;
    if (c->state == CONNECTING)
        for (int i = 0; i < n && c->state == CONNECTING; i++)
            if (c->tries[i] >= 0 && server[i].fd == c->tries[i] && server[i].revents)
                client_tried(c, i);
    if (c->polled_in == c->state)
        pump(c, client->revents, c->state == RELAYING ? server->revents : 0);
}

/* Pass names that were looked up to their clients, which may have gone. */
static void take_names(void)
{
    union address targets[MOST_TARGETS];
    uint64_t number;
    int n, error;
    while (resolve_next(&number, targets, &n, &error)) {
        struct client *c = clients;
        while (c && c->number != number)
            c = c->next;
        if (c && c->state == RESOLVING)
            client_resolved(c, targets, n, error);
    }
}

static void accept_clients(void)
{
    for (int i = 0; i < 64; i++) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
            paused_until = now() + PAUSE; /* poll(2) would report what waits again and again */
        if (fd < 0)
            return;
        n_clients += client_new(fd);
    }
}

/* Do what is due. Returns the milliseconds until the next call. */
static int tick(int64_t time)
{
    int next = paused_until > time ? PAUSE : TICK;
    asks_tick(time);
    for (struct client *c = clients; c; c = c->next) {
        if (c->state == CONNECTING && c->n_tries < c->n_targets && c->next_try <= time)
            client_try(c);
        if (c->state == CONNECTING && c->n_tries < c->n_targets && c->next_try - time < next)
            next = c->next_try > time ? (int)(c->next_try - time) : 0;
        if (c->deadline > time)
            continue;
        if (c->state == HEAD || c->state == ENDING)
            client_end(c);
        else if (c->state == CONNECTING)
            client_fail(c, ETIMEDOUT);
        else if (c->state == RELAYING && watch_waits(&c->watch, c->client.size - c->passable))
            client_reset(c, NSBOX_NET_NO_TLS);
    }
    return next;
}

void clients_judge(void)
{
    for (struct client *c = clients; c; c = c->next) {
        if (c->state < ASKING || c->state > RELAYING)
            continue;
        uint32_t reason = revoked(c);
        if (reason && c->state == RELAYING)
            client_reset(c, reason);
        else if (reason)
            client_refuse(c, reason);
        else if (c->state == ASKING && judge(&c->to) == VERDICT_YES) {
            c->ask = NULL; /* the caller needn't be asked any more */
            client_proceed(c);
        }
    }
}

static void sweep(void)
{
    for (struct client **link = &clients, *c; (c = *link);) {
        if (c->state != OVER) {
            link = &c->next;
            continue;
        }
        *link = c->next;
        n_clients--;
        free(c->first);
        free(c);
    }
}

static void loop(void)
{
    for (int wait = 0;; wait = tick(now())) {
        sweep();
        size_t n = gather();
        if (!n || poll(polled, (nfds_t)n, wait) < 0) {
            usleep(1000);
            continue;
        }
        const short arrivals = polled[0].revents, of_caller = polled[1].revents, names = polled[2].revents;
        if (of_caller && !control_ready(of_caller)) /* comes first: it announces a sandbox before that has a client */
            return;
        for (struct client *c = clients; c; c = c->next)
            if (c->state != OVER)
                serve(c);
        if (names)
            take_names();
        control_settle();
        if (arrivals)
            accept_clients();
    }
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
#ifdef __linux__
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
    if (leave_caller() < 0 || control_start(CONTROL) < 0 || start_listener() < 0 || (resolver = resolve_start()) < 0)
        return 1;
    loop();
    return 0;
}
