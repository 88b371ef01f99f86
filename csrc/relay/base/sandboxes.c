/* sandboxes.c: the sandboxes that are served, and what all parts need to know about one. */
#include "relay.h"
#include <sys/epoll.h>

static struct sandbox *sandboxes;

int sandboxes_left(void)
{
    return sandboxes != NULL;
}

struct sandbox *sandbox_newest(void)
{
    return sandboxes;
}

void sandbox_add(struct sandbox *s)
{
    s->next = sandboxes;
    sandboxes = s;
}

void sandbox_remove(const struct sandbox *s)
{
    struct sandbox **link = &sandboxes;
    while (*link && *link != s)
        link = &(*link)->next;
    if (*link)
        *link = s->next;
}

void sandbox_free(struct sandbox *s)
{
    if (s->is_ended && !s->n_questions && !s->n_jobs)
        later_free(s);
}

int sandbox_is_over_limit(struct sandbox *s, size_t bytes)
{
    s->bytes += bytes;
    return list.head->bytes && s->bytes > list.head->bytes;
}

int sandbox_listens(const struct sandbox *s, uint16_t port)
{
    for (int i = 0; i < s->n_localhost; i++)
        if (s->localhost[i].source.fd >= 0 && s->localhost[i].port == port)
            return 1;
    return 0;
}

int sandbox_watch(struct listener *listener)
{
    if (listener->source.fd < 0 || listener->is_watched)
        return 0;
    listener->is_watched = 1;
    return loop_add(&listener->source, EPOLLIN);
}
