/* resolve.c: names looked up as the machine does it (getaddrinfo(3)), in threads, since that may take half a minute. */
#include "proxy.h"
#include "net/hosts.h"
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_THREADS = 8, MOST_JOBS = 256, THREAD_STACK = 512 * 1024 };

struct job {
    struct job *next;
    uint64_t client;
    char name[HELLO_NAME];
    union address targets[MOST_TARGETS];
    int error, n_targets;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_work = PTHREAD_COND_INITIALIZER;
static struct job *todo, *done; /* under the lock, as what follows */
static int n_threads, n_idle, n_jobs;
static int ends[2];

static int is_in_hosts(const char *name)
{
    char *line = NULL;
    size_t room = 0;
    int is_there = 0;
    FILE *file = fopen("/etc/hosts", "r");
    while (file && !is_there && getline(&line, &room, file) >= 0)
        is_there = hosts_line_has(line, name);
    free(line);
    if (file)
        fclose(file);
    return is_there;
}

/* A dot at its end keeps search domains away, resolv.conf(5). The machine's table has no names with one. */
static void look_up(struct job *job)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    char text[HELLO_NAME + 1] = {0};
    size_t size = strnlen(job->name, HELLO_NAME - 1);
    memcpy(text, job->name, size);
    if (!is_in_hosts(job->name))
        text[size] = '.';
    job->error = getaddrinfo(text, NULL, &hints, &all);
    for (struct addrinfo *one = all; one && job->n_targets < MOST_TARGETS; one = one->ai_next) {
        union address *to = &job->targets[job->n_targets];
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
    pthread_mutex_lock(&lock);
    for (;;) {
        struct job *job = todo;
        if (!job) {
            n_idle++;
            pthread_cond_wait(&is_work, &lock);
            n_idle--;
            continue;
        }
        todo = job->next;
        pthread_mutex_unlock(&lock);
        look_up(job);
        pthread_mutex_lock(&lock);
        job->next = done;
        done = job;
        if (write(ends[1], "", 1) < 0)
            continue; /* the pipe is full: the loop is told already */
    }
    return unused;
}

/* One more thread, if none is idle and there aren't enough. Under the lock. */
static void add_thread(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    if ((n_idle && !todo) || n_threads == MOST_THREADS)
        return;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, THREAD_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (!pthread_create(&thread, &attributes, work, NULL))
        n_threads++;
    pthread_attr_destroy(&attributes);
}

int resolve(uint64_t client, const char *name)
{
    struct job *job = calloc(1, sizeof *job);
    int ret = -ENOMEM;
    if (!job)
        return ret;
    job->client = client;
    memcpy(job->name, name, strnlen(name, sizeof job->name - 1));
    pthread_mutex_lock(&lock);
    add_thread();
    if (n_threads > 0 && n_jobs < MOST_JOBS) {
        struct job **end = &todo;
        while (*end)
            end = &(*end)->next;
        *end = job;
        n_jobs++;
        ret = 0;
        pthread_cond_signal(&is_work);
    }
    pthread_mutex_unlock(&lock);
    if (ret)
        free(job);
    return ret;
}

int resolve_next(uint64_t *client, union address targets[MOST_TARGETS], int *n, int *error)
{
    char drained[64];
    if (read(ends[0], drained, sizeof drained) < 0 && errno != EAGAIN)
        return 0;
    pthread_mutex_lock(&lock);
    struct job *job = done;
    if (job) {
        done = job->next;
        n_jobs--;
    }
    pthread_mutex_unlock(&lock);
    if (!job)
        return 0;
    *client = job->client;
    *n = job->n_targets;
    *error = job->n_targets ? 0 : job->error == EAI_NONAME ? ENOENT : EAGAIN;
    memcpy(targets, job->targets, sizeof job->targets);
    free(job);
    return 1;
}

int resolve_start(void)
{
    if (pipe(ends) < 0 || set_nonblocking(ends[0]) < 0 || set_nonblocking(ends[1]) < 0)
        return -errno;
    return ends[0];
}
