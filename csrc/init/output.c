/* output.c: keeps what the processes that a command left running print. They write to that command's pipes, which
 * nobody else reads any more. Each command has a file, which keeps the beginning and what came last.
 *
 * We may do to the file system what any command may, and no more: the file is a new one, in the session's own /tmp.
 */
#include "session.h"

enum { MOST_NAMES = 1000, HALF = 512 * 1024, CHUNK = 16384 };

struct output {
    int pipes[2], file; /* or -1: without a file the pipes are still read */
    int64_t at, left_out;
};

static struct output outputs[MOST_OUTPUTS]; /* free if its pipes are 0 */
static unsigned last_number;

static int is_free(const struct output *o)
{
    return !o->pipes[0] && !o->pipes[1];
}

static unsigned decimal(char *to, uint64_t number)
{
    char digits[20];
    unsigned n = 0;
    do
        digits[n++] = (char)('0' + number % 10);
    while (number /= 10);
    for (unsigned i = 0; i < n; i++)
        to[i] = digits[n - 1 - i];
    return n;
}

static char *append(char *to, const char *text)
{
    while (*text)
        *to++ = *text++;
    return to;
}

/* Returns the number of a new file, or 0 if there is none. */
static unsigned open_file(int *file)
{
    char name[64];
    for (unsigned i = 0; i < MOST_NAMES; i++) {
        char *to = append(name, NSBOX_OUTPUT_NAME);
        to += decimal(to, ++last_number);
        *append(to, ".log") = 0;
        *file = sys_openat(AT_FDCWD, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | SYS_O_CLOEXEC, 0600);
        if (*file >= 0)
            return last_number;
        if (*file != -EEXIST)
            break;
    }
    return 0;
}

/* Returns the number of the file for these pipes, 0 without one; -EMFILE: we can't read any more pipes. */
int64_t output_keep(const int *pipes, int n, int with_file)
{
    for (int i = 0; i < MOST_OUTPUTS; i++) {
        struct output *o = &outputs[i];
        if (!is_free(o))
            continue;
        *o = (struct output){.pipes = {-1, -1}, .file = -1};
        for (int k = 0; k < n && k < 2; k++) {
            sys_set_nonblocking(pipes[k]); /* others can open the pipe, and be faster */
            o->pipes[k] = pipes[k];
        }
        return with_file ? open_file(&o->file) : 0;
    }
    return -EMFILE;
}

static void put(struct output *o, const char *data, int64_t n)
{
    if (o->file < 0)
        return;
    if (o->at + n > 2 * (int64_t)HALF) {
        char note[64], *to = append(note, "\n[... ");
        o->left_out += o->at - HALF;
        o->at = HALF;
        sys_ftruncate(o->file, HALF);
        to += decimal(to, (uint64_t)o->left_out);
        to = append(to, " bytes left out ...]\n");
        sys_pwrite(o->file, note, (size_t)(to - note), o->at);
        o->at += to - note;
        o->left_out -= to - note; /* the note, which is left out next time: no process wrote it */
    }
    sys_pwrite(o->file, data, (size_t)n, o->at); /* without room it isn't kept */
    o->at += n;
}

static void take(struct output *o, int *pipe)
{
    static char chunk[CHUNK];
    long n = sys_read(*pipe, chunk, sizeof chunk);
    if (n > 0)
        put(o, chunk, n);
    if (n > 0 || n == -EAGAIN || n == -EINTR)
        return;
    sys_close(*pipe);
    *pipe = -1;
    if (o->pipes[0] >= 0 || o->pipes[1] >= 0)
        return;
    sys_close(o->file);
    o->pipes[0] = o->pipes[1] = 0; /* free */
}

/* Returns how many there are: ppoll(2) takes no more than there may be descriptors. */
unsigned output_watch(struct pollfd *watched)
{
    unsigned n = 0;
    for (int i = 0; i < MOST_OUTPUTS; i++)
        for (int k = 0; k < 2 && !is_free(&outputs[i]); k++)
            if (outputs[i].pipes[k] >= 0)
                watched[n++] = (struct pollfd){.fd = outputs[i].pipes[k], .events = POLLIN};
    return n;
}

static void take_from(int fd)
{
    for (int i = 0; i < MOST_OUTPUTS; i++)
        for (int k = 0; k < 2 && !is_free(&outputs[i]); k++)
            if (outputs[i].pipes[k] == fd) {
                take(&outputs[i], &outputs[i].pipes[k]);
                return;
            }
}

/* Reads one chunk of each, however much there is: we also have to notice the caller's end. */
void output_take(const struct pollfd *watched, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (watched[i].revents)
            take_from(watched[i].fd);
}
