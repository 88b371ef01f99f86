/* reader.c: what reading a command line needs everywhere: memory, the message that ends it, and descriptors. */
#include "line.h"
#include "kernel/sys.h"

enum { CHUNK = 16384 };

/* ---- the reader */

void *reader_take(struct reader *r, uint64_t n)
{
    void *found = memory_take(&r->line->memory, n);
    if (!found)
        r->stopped = r->no_memory = true;
    return found;
}

void *reader_add(struct reader *r, struct list *list, uint64_t size)
{
    void *item = list_add(&r->line->memory, list, size);
    if (!item)
        r->stopped = r->no_memory = true;
    return item;
}

const char *reader_text(struct reader *r, const char *const *parts)
{
    const char *text = text_join(&r->line->memory, parts);
    if (!text)
        r->stopped = r->no_memory = true;
    return text;
}

void reader_die(struct reader *r, const char *const *parts)
{
    if (r->stopped)
        return;
    const char *problem = reader_text(r, parts);
    const char *level = r->line->flags & NSBOX_BWRAP_LEVELS ? "<3>" : "";
    if (problem)
        r->line->message = reader_text(r, (const char *const[]){level, "bwrap: ", problem, NULL});
    r->line->outcome = NSBOX_BWRAP_REFUSED;
    r->stopped = true;
}

bool is_whole(struct number number)
{
    return number.is_one && !number.is_negative && !number.is_huge && number.amount <= INT32_MAX;
}

int32_t reader_fd(struct reader *r, const char *text)
{
    struct number number = number_of(text, 10);
    if (!is_whole(number)) {
        DIE(r, "Invalid fd: ", text);
        return -1;
    }
    int32_t fd = (int32_t)number.amount, *known = r->fds.items;
    for (uint64_t i = 0; i < r->fds.n; i++)
        if (known[i] == fd)
            return fd;
    int32_t *item = reader_add(r, &r->fds, sizeof *item);
    if (!item)
        return -1;
    *item = fd;
    return fd;
}

static void forget_fd(struct reader *r, int32_t fd)
{
    int32_t *known = r->fds.items;
    uint64_t kept = 0;
    for (uint64_t i = 0; i < r->fds.n; i++)
        if (known[i] != fd)
            known[kept++] = known[i];
    r->fds.n = kept;
}

int read_all(void **at, int fd, uint8_t **data, uint64_t *len)
{
    uint8_t *bytes = NULL;
    uint64_t n = 0, room = 0;
    long got = 1;
    while (got > 0) {
        if (room <= n + CHUNK) {
            uint8_t *more = memory_take(at, room = 2 * n + 2 * CHUNK);
            for (uint64_t i = 0; more && i < n; i++)
                more[i] = bytes[i];
            bytes = more;
        }
        if (!bytes) {
            got = -ENOMEM;
            break;
        }
        do
            got = sys_read(fd, bytes + n, CHUNK);
        while (got == -EINTR);
        n += got > 0 ? (uint64_t)got : 0;
    }
    if (fd > 2)
        sys_close(fd);
    *data = bytes;
    *len = n;
    return (int)got;
}

bool reader_contents(struct reader *r, const char *word, const char *what, nsbox_bwrap_filter *found)
{
    int32_t fd = reader_fd(r, word);
    if (fd < 0)
        return false;
    forget_fd(r, fd);
    uint8_t *bytes;
    int got = read_all(&r->line->memory, fd, &bytes, &found->len);
    if (got == -ENOMEM && !bytes)
        r->stopped = r->no_memory = true;
    if (got < 0)
        DIE(r, "Can't read ", what, " data: ", errno_text(-got));
    if (r->stopped)
        return false;
    found->code = bytes;
    return true;
}
