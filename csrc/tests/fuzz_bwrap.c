/* fuzz_bwrap.c: the words of a command line of bubblewrap, and a file of --args or --add-seccomp-fd. For libFuzzer, or
 * with fuzz_main.c. An input is words that end in NUL, a byte 1, and the file. Descriptors that are read are the file's.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi_bwrap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 16, MOST_WORDS = 10000, FD = 100 };

static void must(int holds)
{
    if (!holds)
        abort();
}

/* Copies words, of which those that name a descriptor to be read name ours. Returns the bytes of the copy. */
static size_t copy(char *to, size_t room, const uint8_t *from, size_t size, const char **words, size_t *n)
{
    size_t used = 0;
    int is_fd = 0;
    *n = 0;
    for (size_t at = 0; at < size && *n < MOST_WORDS;) {
        size_t len = strnlen((const char *)from + at, size - at);
        if (used + len + 4 > room)
            break;
        words[(*n)++] = to + used;
        memcpy(to + used, is_fd ? "100" : (const char *)from + at, is_fd ? 3 : len);
        used += is_fd ? 3 : len;
        to[used++] = 0;
        is_fd = !strcmp(words[*n - 1], "--args") || !strcmp(words[*n - 1], "--add-seccomp-fd");
        at += len + 1;
    }
    words[*n] = NULL;
    return used;
}

static void check(const nsbox_bwrap_line *line)
{
    must(line->command && *line->command && line->env);
    for (uint64_t i = 0; i < line->n_ops; i++) {
        const nsbox_bwrap_op *op = &line->ops[i];
        must(op->what < NSBOX_BWRAP_WHATS && op->option);
        must(op->what == NSBOX_BWRAP_OP_HOSTNAME || (op->dest && *op->dest == '/' && !strstr(op->dest, "//")));
        must(op->n_layers <= 10 && op->mode <= 07777 && op->size <= INT64_MAX);
    }
    for (uint64_t i = 0; i < line->n_warnings; i++)
        must(strstr(line->warnings[i], " option will take effect") != NULL);
    for (uint64_t i = 0; i < line->n_fds; i++)
        must(line->fds[i] >= 0);
    for (uint64_t i = 0; i < line->n_filters; i++)
        must(line->filters[i].len % 8 == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[MOST], file[MOST];
    static const char *words[MOST_WORDS + 1], *inside[MOST_WORDS + 1];
    static const char *const envp[] = {"HOME=/h", "A=1", "odd", NULL};
    const uint8_t *mark = size ? memchr(data, 1, size) : NULL;
    size_t n, rest = mark ? (size_t)(data + size - mark - 1) : 0, first = size - rest - (mark != NULL);
    copy(text, sizeof text, data, first, words, &n);
    size_t length = copy(file, sizeof file, mark ? mark + 1 : data, rest, inside, &n);
    int fd = memfd_create("file", 0);
    must(fd >= 0 && write(fd, file, length) == (ssize_t)length && lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, FD) == FD);
    close(fd);
    nsbox_bwrap_line line;
    must(nsbox_bwrap_parse(&line, words, envp, size % 2, size % 2) == 0);
    must(line.outcome <= NSBOX_BWRAP_ASKS_VERSION);
    if (line.outcome == NSBOX_BWRAP_READ)
        check(&line);
    if (line.outcome == NSBOX_BWRAP_REFUSED)
        must(strstr(line.message, "bwrap: ") != NULL);
    nsbox_bwrap_forget(&line);
    close(FD);
    return 0;
}
