/* resolve.c: names looked up as the host does it (getaddrinfo(3)), in threads, since that may take half a minute.
 *
 * A thread gets a copy of the name and gives back what it found; all else is done in the one thread of the loop.
 */
#include "relay.h"
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MOST_THREADS = 8, THREAD_STACK = 256 * 1024, FRESH = 30 * SECOND, FRESH_FAILURE = 2 * SECOND };

struct job {
    struct job *next;
    struct name *name;
    char text[DNS_NAME];
    union target targets[MOST_TARGETS], refused;
    int error, n_targets, n_refused;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_work = PTHREAD_COND_INITIALIZER;
static struct job *todo, **todo_end = &todo, *done; /* under the lock */
static int n_threads, n_idle, n_todo;
static struct source found = {.fd = -1};

static int same_address(const struct sockaddr *a, const union target *b)
{
    if (!a || a->sa_family != b->any.sa_family)
        return 0;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr == b->four.sin_addr.s_addr;
    const struct sockaddr_in6 *six = (const void *)a;
    return !memcmp(&six->sin6_addr, &b->six.sin6_addr, sizeof b->six.sin6_addr);
}

/* An IPv6 address that stands for an IPv4 one is that one. */
static union target unmapped(const union target *target)
{
    union target four = {.four = {.sin_family = AF_INET}};
    if (target->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&target->six.sin6_addr))
        return *target;
    memcpy(&four.four.sin_addr, target->six.sin6_addr.s6_addr + 12, 4);
    return four;
}

int is_own_address(const union target *target)
{
    struct ifaddrs *all, *one;
    union target plain = unmapped(target);
    if (getifaddrs(&all) < 0)
        return 1; /* nobody knows: not to be connected to */
    for (one = all; one && !same_address(one->ifa_addr, &plain); one = one->ifa_next)
        ;
    freeifaddrs(all);
    return one != NULL;
}

int may_reach(const union target *target, uint16_t port, int protocol, uint32_t *reason)
{
    int is_six = target->any.sa_family == AF_INET6, is_own = is_own_address(target);
    const uint8_t *bytes = is_six ? target->six.sin6_addr.s6_addr : (const uint8_t *)&target->four.sin_addr;
    if (rules_may_resolve(&list, bytes, is_six ? 16 : 4, port, protocol, is_own))
        return 1;
    *reason = is_own ? NSBOX_NET_OWN_ADDRESS : NSBOX_NET_ADDRESS;
    return 0;
}

static void look_up(struct job *job)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    job->error = getaddrinfo(job->text, NULL, &hints, &all);
    for (struct addrinfo *one = all; one && job->n_targets < MOST_TARGETS; one = one->ai_next) {
        union target *to = &job->targets[job->n_targets];
        if ((one->ai_family != AF_INET && one->ai_family != AF_INET6) || one->ai_addrlen > sizeof *to)
            continue;
        memcpy(to, one->ai_addr, one->ai_addrlen);
        job->n_targets++;
    }
    if (all)
        freeaddrinfo(all);
}

static void *work(void *unused)
{
    const uint64_t one = 1;
    pthread_mutex_lock(&lock);
    for (;;) {
        n_idle++;
        while (!todo)
            pthread_cond_wait(&is_work, &lock);
        n_idle--;
        struct job *job = todo;
        todo = job->next;
        n_todo--;
        if (!todo)
            todo_end = &todo;
        pthread_mutex_unlock(&lock);
        look_up(job);
        pthread_mutex_lock(&lock);
        job->next = done;
        done = job;
        if (write(found.fd, &one, sizeof one) < 0)
            continue; /* the counter is full: the loop is told already */
    }
    return unused;
}

static void take_over(struct job *job)
{
    struct name *name = job->name;
    name->n_targets = job->n_targets;
    memcpy(name->targets, job->targets, sizeof name->targets);
    name->code = job->n_targets                                         ? DNS_NOERROR
                 : job->error == EAI_NONAME || job->error == EAI_NODATA ? DNS_NXDOMAIN
                                                                        : DNS_SERVFAIL;
    name->fresh_until = now() + (job->n_targets ? FRESH : FRESH_FAILURE);
    name->is_busy = 0;
    struct waiter *waiter = name->waiters;
    name->waiters = NULL;
    while (waiter) {
        struct waiter *next = waiter->next;
        waiter->done(waiter, name);
        waiter = next;
    }
}

static void on_found(struct source *source, uint32_t events)
{
    uint64_t count;
    (void)events;
    if (read(source->fd, &count, sizeof count) < 0)
        return;
    pthread_mutex_lock(&lock);
    struct job *job = done;
    done = NULL;
    pthread_mutex_unlock(&lock);
    while (job) {
        struct job *next = job->next;
        take_over(job);
        free(job);
        job = next;
    }
}

/* One more thread, unless an idle one is left for this job, or there are enough. Under the lock. */
static void add_thread(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    if (n_idle > n_todo || n_threads == MOST_THREADS)
        return;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, THREAD_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (!pthread_create(&thread, &attributes, work, NULL))
        n_threads++;
    pthread_attr_destroy(&attributes);
}

static int enqueue(struct name *name)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return 0;
    job->name = name;
    memcpy(job->text, name->text, sizeof job->text);
    pthread_mutex_lock(&lock);
    add_thread();
    int can = n_threads > 0;
    if (can) {
        *todo_end = job;
        todo_end = &job->next;
        n_todo++;
        pthread_cond_signal(&is_work);
    }
    pthread_mutex_unlock(&lock);
    if (!can)
        free(job);
    return can;
}

void resolve(struct name *name, struct waiter *waiter)
{
    if (!name->is_busy && name->fresh_until > now()) {
        waiter->done(waiter, name);
        return;
    }
    if (!name->is_busy && !enqueue(name)) {
        name->n_targets = 0;
        name->code = DNS_SERVFAIL;
        waiter->done(waiter, name);
        return;
    }
    name->is_busy = 1;
    waiter->next = name->waiters;
    name->waiters = waiter;
}

int resolve_start(void)
{
    found = (struct source){on_found, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    return found.fd < 0 ? -errno : loop_add(&found, EPOLLIN);
}
