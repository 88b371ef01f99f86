/* resolve.c: names looked up as the host does it (getaddrinfo(3)), in threads, since that may take half a minute.
 *
 * A thread gets a copy of the name and gives back what it found; all else is done in the one thread of the loop.
 */
#include "net/hosts.h"
#include "relay/base/relay.h"
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    MOST_THREADS = 8,
    MOST_OF_ONE = 4 /* threads for a sandbox */,
    MOST_JOBS = 256,
    THREAD_STACK = 256 * 1024,
    FRESH = 30 * SECOND,
    FRESH_FAILURE = 2 * SECOND
};

struct job {
    struct job *next;
    struct name *name;
    struct sandbox *sandbox; /* a thread knows of it only n_busy, under the lock */
    char text[DNS_NAME];
    union target targets[MOST_TARGETS];
    int error, n_targets;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_work = PTHREAD_COND_INITIALIZER;
static struct job *todo, *done; /* under the lock; todo in the order of their coming */
static int n_threads, n_idle;
static struct source found = {.fd = -1};

/* Is it in the host's table? */
static int is_in_hosts(const char *name)
{
    char *line = NULL;
    size_t room = 0;
    int is_there = 0;
    FILE *file = fopen("/etc/hosts", "re");
    while (file && !is_there && getline(&line, &room, file) >= 0)
        is_there = hosts_line_has(line, name);
    free(line);
    if (file)
        fclose(file);
    return is_there;
}

/* A name is listed as it is: a dot at its end keeps the host's search domains away, resolv.conf(5). The host's table has no
 * names with one. */
static void look_up(struct job *job)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    char text[DNS_NAME + 1] = {0};
    size_t size = strnlen(job->text, DNS_NAME - 1);
    memcpy(text, job->text, size);
    if (!is_in_hosts(job->text))
        text[size] = '.';
    job->error = getaddrinfo(text, NULL, &hints, &all);
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

/* The first job of a sandbox that hasn't its share of the threads. Under the lock. */
static struct job *next_job(void)
{
    struct job **link = &todo;
    while (*link && (*link)->sandbox->n_busy == MOST_OF_ONE)
        link = &(*link)->next;
    struct job *job = *link;
    if (job) {
        *link = job->next;
        job->sandbox->n_busy++;
    }
    return job;
}

static void *work(void *unused)
{
    const uint64_t one = 1;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct job *job = next_job();
        if (!job) {
            n_idle++;
            pthread_cond_wait(&is_work, &lock);
            n_idle--;
            continue;
        }
        pthread_mutex_unlock(&lock);
        look_up(job);
        pthread_mutex_lock(&lock);
        job->sandbox->n_busy--;
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
    struct waiter *waiters = name->waiters; /* others may come while these are told, or some of these go */
    name->waiters = NULL;
    if (waiters)
        waiters->link = &waiters;
    while (waiters) {
        struct waiter *waiter = waiters;
        resolve_forget(waiter);
        waiter->done(waiter, name);
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
        job->sandbox->n_jobs--;
        sandbox_free(job->sandbox);
        free(job);
        job = next;
    }
}

/* One more thread, if none is idle and there aren't enough. Under the lock. */
static void add_thread(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    if (n_idle || n_threads == MOST_THREADS)
        return;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, THREAD_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (!pthread_create(&thread, &attributes, work, NULL))
        n_threads++;
    pthread_attr_destroy(&attributes);
}

static int enqueue(struct sandbox *sandbox, struct name *name)
{
    struct job *job = sandbox->n_jobs < MOST_JOBS ? calloc(1, sizeof *job) : NULL;
    if (!job)
        return 0;
    job->name = name;
    job->sandbox = sandbox;
    memcpy(job->text, name->text, sizeof job->text);
    pthread_mutex_lock(&lock);
    add_thread();
    int can = n_threads > 0;
    if (can) {
        struct job **end = &todo;
        while (*end)
            end = &(*end)->next;
        *end = job;
        pthread_cond_signal(&is_work);
    }
    pthread_mutex_unlock(&lock);
    if (can)
        sandbox->n_jobs++;
    else
        free(job);
    return can;
}

/* Another sandbox waits for this name too. If the one for which it is to be looked up has its share of the threads, and many
 * names before it, that is no reason for this one to wait as well. */
static void adopt(struct sandbox *sandbox, const struct name *name)
{
    struct sandbox *before = NULL;
    pthread_mutex_lock(&lock);
    struct job *job = todo;
    while (job && job->name != name)
        job = job->next;
    if (job && job->sandbox->n_busy == MOST_OF_ONE && sandbox->n_busy < MOST_OF_ONE) {
        before = job->sandbox;
        job->sandbox = sandbox;
        add_thread();
        pthread_cond_signal(&is_work);
    }
    pthread_mutex_unlock(&lock);
    if (!before)
        return;
    sandbox->n_jobs++;
    before->n_jobs--;
    sandbox_free(before);
}

void resolve(struct sandbox *sandbox, struct name *name, struct waiter *waiter)
{
    if (!name->is_busy && name->fresh_until > now()) {
        waiter->done(waiter, name);
        return;
    }
    if (!name->is_busy && !enqueue(sandbox, name)) {
        name->n_targets = 0;
        name->code = DNS_SERVFAIL;
        waiter->done(waiter, name);
        return;
    }
    if (name->is_busy)
        adopt(sandbox, name);
    name->is_busy = 1;
    waiter->next = name->waiters;
    waiter->link = &name->waiters;
    if (waiter->next)
        waiter->next->link = &waiter->next;
    name->waiters = waiter;
}

void resolve_forget(struct waiter *waiter)
{
    *waiter->link = waiter->next;
    if (waiter->next)
        waiter->next->link = waiter->link;
}

int resolve_start(void)
{
    found = (struct source){on_found, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), NULL};
    return found.fd < 0 ? -errno : loop_add(&found, EPOLLIN);
}
