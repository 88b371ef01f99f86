/* lookup.c: the threads that look names up, and their work. */
#include "lookup.h"
#include "hosts.h"
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_THREADS = 8, THREAD_STACK = 512 * 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_work = PTHREAD_COND_INITIALIZER;
static struct lookup *todo, *done; /* under the lock, as all that follows; todo in order of arrival */
static int n_threads, n_idle;
static int wake = -1;

/* Is it in the host's table? */
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

/* Look a name up exactly as it is listed: a dot at its end keeps the host's search domains away, resolv.conf(5). The
 * host's table has no names with one. */
static void look_up(struct lookup *lookup)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    char text[HELLO_NAME + 1] = {0};
    size_t size = strnlen(lookup->name, HELLO_NAME - 1);
    memcpy(text, lookup->name, size);
    if (!is_in_hosts(lookup->name))
        text[size] = '.';
    lookup->error = getaddrinfo(text, NULL, &hints, &all);
    for (struct addrinfo *one = all; one && lookup->n_targets < MOST_TARGETS; one = one->ai_next) {
        union address *to = &lookup->targets[lookup->n_targets];
        if ((one->ai_family != AF_INET && one->ai_family != AF_INET6) || one->ai_addrlen > sizeof *to)
            continue;
        memcpy(to, one->ai_addr, one->ai_addrlen);
        lookup->n_targets++;
    }
    if (all)
        freeaddrinfo(all);
}

/* Returns the link to the first lookup whose owner hasn't used up its share of the threads; or to the end of the
 * list. Under the lock. */
static struct lookup **next_link(void)
{
    struct lookup **link = &todo;
    while (*link && (*link)->n_busy && *(*link)->n_busy == LOOKUP_SHARE)
        link = &(*link)->next;
    return link;
}

static struct lookup *take(void)
{
    struct lookup **link = next_link(), *lookup = *link;
    if (!lookup)
        return NULL;
    *link = lookup->next;
    lookup->is_taken = 1;
    if (lookup->n_busy)
        ++*lookup->n_busy;
    return lookup;
}

static void *work(void *unused)
{
    const uint64_t one = 1;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct lookup *lookup = take();
        if (!lookup) {
            n_idle++;
            pthread_cond_wait(&is_work, &lock);
            n_idle--;
            continue;
        }
        pthread_mutex_unlock(&lock);
        look_up(lookup);
        pthread_mutex_lock(&lock);
        if (lookup->n_busy)
            --*lookup->n_busy;
        lookup->next = done;
        done = lookup;
        if (write(wake, &one, sizeof one) < 0)
            continue; /* it is full, so the other thread has been woken already */
    }
    return unused;
}

/* Add a thread, if there aren't enough. An idle one is enough for one lookup: it may have been woken for another,
 * which still waits. Under the lock. */
static void add_thread(void)
{
    pthread_t thread;
    pthread_attr_t attributes;
    if ((n_idle && !*next_link()) || n_threads == MOST_THREADS)
        return;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, THREAD_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (!pthread_create(&thread, &attributes, work, NULL))
        n_threads++;
    pthread_attr_destroy(&attributes);
}

int lookup_add(struct lookup *lookup)
{
    pthread_mutex_lock(&lock);
    add_thread();
    int can = n_threads > 0;
    if (can) {
        struct lookup **end = &todo;
        while (*end)
            end = &(*end)->next;
        *end = lookup;
        pthread_cond_signal(&is_work);
    }
    pthread_mutex_unlock(&lock);
    return can;
}

int lookup_adopt(struct lookup *lookup, int *n_busy)
{
    pthread_mutex_lock(&lock);
    int can = !lookup->is_taken && *lookup->n_busy == LOOKUP_SHARE && *n_busy < LOOKUP_SHARE;
    if (can) {
        add_thread();
        lookup->n_busy = n_busy;
        pthread_cond_signal(&is_work);
    }
    pthread_mutex_unlock(&lock);
    return can;
}

struct lookup *lookup_done(void)
{
    pthread_mutex_lock(&lock);
    struct lookup *all = done;
    done = NULL;
    pthread_mutex_unlock(&lock);
    return all;
}

void lookup_start(int fd)
{
    wake = fd;
}
