/* resolve.c: looks names up as the host does, for all that wait for them; an answer is fresh for a while.
 *
 * A thread gets a copy of the name and returns what it found; everything else is done in the one thread of the loop.
 */
#include "net/lookup.h"
#include "relay/base/relay.h"
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { MOST_JOBS = 256, FRESH = 30 * SECOND, FRESH_FAILURE = 2 * SECOND };

struct job {
    struct lookup lookup; /* comes first; of the sandbox, a thread knows only n_busy */
    struct name *name;
    struct sandbox *sandbox;
};

static struct source wakeup = {.fd = -1};

static void take_over(struct job *job)
{
    struct name *name = job->name;
    const struct lookup *lookup = &job->lookup;
    int is_unknown = lookup->error == EAI_NONAME || lookup->error == EAI_NODATA;
    name->n_targets = lookup->n_targets;
    memcpy(name->targets, lookup->targets, sizeof name->targets);
    name->code = lookup->n_targets ? DNS_NOERROR : is_unknown ? DNS_NXDOMAIN : DNS_SERVFAIL;
    name->fresh_until = now() + (lookup->n_targets ? FRESH : FRESH_FAILURE);
    name->is_busy = 0;
    name->job = NULL;
    struct waiter *waiters = name->waiters; /* others may come while these are called, or some of these go */
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
    for (struct lookup *lookup = lookup_done(), *next; lookup; lookup = next) {
        struct job *job = (struct job *)(void *)lookup;
        next = lookup->next;
        take_over(job);
        job->sandbox->n_jobs--;
        sandbox_free(job->sandbox);
        free(job);
    }
}

static int enqueue(struct sandbox *sandbox, struct name *name)
{
    struct job *job = sandbox->n_jobs < MOST_JOBS ? calloc(1, sizeof *job) : NULL;
    if (!job)
        return 0;
    *job = (struct job){.lookup = {.n_busy = &sandbox->n_busy}, .name = name, .sandbox = sandbox};
    memcpy(job->lookup.name, name->text, sizeof job->lookup.name);
    name->job = job;
    if (lookup_add(&job->lookup)) {
        sandbox->n_jobs++;
        return 1;
    }
    name->job = NULL;
    free(job);
    return 0;
}

/* Let another sandbox that waits for this name take its lookup over. The first sandbox may have used up its share of
 * threads, with many names before this one; the other needn't wait for that. */
static void adopt(struct sandbox *sandbox, const struct name *name)
{
    struct sandbox *before = name->job->sandbox;
    if (!lookup_adopt(&name->job->lookup, &sandbox->n_busy))
        return;
    name->job->sandbox = sandbox;
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
    wakeup = (struct source){on_found, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), NULL};
    lookup_start(wakeup.fd);
    return wakeup.fd < 0 ? -errno : loop_add(&wakeup, EPOLLIN);
}
