/* resolve.c: looks names up for clients, which may have gone when the answer comes. */
#include "proxy.h"
#include "net/lookup.h"
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_JOBS = 256 };

struct job {
    struct lookup lookup; /* first */
    uint64_t client;
};

static int n_jobs, ends[2];
static struct lookup *done;

int resolve(uint64_t client, const char *name)
{
    struct job *job = n_jobs < MOST_JOBS ? calloc(1, sizeof *job) : NULL;
    if (!job)
        return -ENOMEM;
    job->client = client;
    memcpy(job->lookup.name, name, strnlen(name, sizeof job->lookup.name - 1));
    if (!lookup_add(&job->lookup)) {
        free(job);
        return -ENOMEM;
    }
    n_jobs++;
    return 0;
}

int resolve_next(uint64_t *client, union address targets[MOST_TARGETS], int *n, int *error)
{
    uint64_t drained[8];
    if (!done && (read(ends[0], drained, sizeof drained) >= 0 || errno == EAGAIN))
        done = lookup_done();
    if (!done)
        return 0;
    struct lookup *lookup = done;
    struct job *job = (struct job *)(void *)lookup;
    done = lookup->next;
    n_jobs--;
    *client = job->client;
    *n = lookup->n_targets;
    *error = lookup->n_targets ? 0 : lookup->error == EAI_NONAME ? ENOENT : EAGAIN;
    memcpy(targets, lookup->targets, sizeof lookup->targets);
    free(job);
    return 1;
}

int resolve_start(void)
{
    if (pipe(ends) < 0 || set_nonblocking(ends[0]) < 0 || set_nonblocking(ends[1]) < 0)
        return -errno;
    lookup_start(ends[1]);
    return ends[0];
}
