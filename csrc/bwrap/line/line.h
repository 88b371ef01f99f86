/* line.h: what the parts of the parser share: memory, texts, numbers, and the state of a line that is being read.
 *
 * All memory is the line's, in pieces from mmap(2): freestanding programs have no other, and a caller of many threads
 * sees none of it. When there is none left, the reader stops, and nothing is half done. */
#ifndef NSBOX_BWRAP_LINE_H
#define NSBOX_BWRAP_LINE_H

#include <stdbool.h>
#include <stddef.h>

#include "abi_bwrap.h"

/* ---- memory.c */

struct memory;

/* Returns n bytes of zeros, aligned for any type; NULL if there is no more. at: the line's memory. */
void *memory_take(void **at, uint64_t n);
void memory_give_back(void **at);

/* An array that grows. items: NULL at first. */
struct list {
    void *items;
    uint64_t n, room;
};

/* Returns a new last item of `size` bytes, after which there is room for one more of zeros; NULL without memory. */
void *list_add(void **at, struct list *list, uint64_t size);

/* ---- text.c */

uint64_t text_length(const char *text);
bool text_is(const char *one, const char *other);
/* Does the text begin with this? Then what follows, otherwise NULL. */
const char *text_after(const char *text, const char *begin);

/* Returns all parts, up to NULL, as one text; NULL without memory. */
char *text_join(void **at, const char *const *parts);
#define TEXT(at, ...) text_join((at), (const char *const[]){__VA_ARGS__, NULL})

/* Room for the decimal digits of a number. */
struct digits {
    char text[24];
};
const char *digits_of(struct digits *d, int64_t number);

/* What strtol(3) makes of a whole text. */
struct number {
    bool is_one;      /* false: there is no number, or something after it */
    bool is_negative; /* and isn't 0 */
    bool is_huge;     /* more than 64 bits */
    uint64_t amount;
};
struct number number_of(const char *text, unsigned base);

/* What is wrong with an errno's number, as the C library says it. */
const char *errno_text(int error);

/* ---- options.c */

/* How an option is read. */
enum reading {
    NSBOX_BWRAP_READS_HELP,
    NSBOX_BWRAP_READS_VERSION,
    NSBOX_BWRAP_READS_ARGS,
    NSBOX_BWRAP_READS_LEVEL_PREFIX,
    NSBOX_BWRAP_READS_NEW,     /* namespaces that must be new. value: enum nsbox_bwrap_namespace */
    NSBOX_BWRAP_READS_ATTEMPT, /* a namespace that is wanted if it can be had. value: the same */
    NSBOX_BWRAP_READS_NEW_ALL,
    NSBOX_BWRAP_READS_SHARE_NET,
    NSBOX_BWRAP_READS_FD,   /* value: enum nsbox_bwrap_fd */
    NSBOX_BWRAP_READS_ID,   /* value: enum nsbox_bwrap_id */
    NSBOX_BWRAP_READS_TEXT, /* value: enum nsbox_bwrap_text */
    NSBOX_BWRAP_READS_FLAG, /* value: enum nsbox_bwrap_flag */
    NSBOX_BWRAP_READS_CLEARENV,
    NSBOX_BWRAP_READS_SETENV,
    NSBOX_BWRAP_READS_UNSETENV,
    NSBOX_BWRAP_READS_OP, /* value: enum nsbox_bwrap_what, with NSBOX_BWRAP_TRY */
    NSBOX_BWRAP_READS_LAYER,
    NSBOX_BWRAP_READS_PERMS,
    NSBOX_BWRAP_READS_SIZE,
    NSBOX_BWRAP_READS_ADD_SECCOMP,
    NSBOX_BWRAP_READS_CAP, /* value: 1 to add, 0 to drop */
    NSBOX_BWRAP_READS_LOCK_FILE,
    NSBOX_BWRAP_READINGS
};

/* A row of the table of options, whose last row has no name: tools/options.py makes it of nsbox/_bwrap/options.py.
 * args: the names of its arguments, with spaces between them. once: only the last one takes effect, and a warning
 * says so. */
struct option {
    const char *name, *args, *group, *help;
    uint32_t reading, value, n_args, once;
};
extern const struct option option_table[];

/* By their numbers, NULL at the end. */
extern const char *const capability_names[];

/* ---- parse.c, ops.c */

struct reader {
    nsbox_bwrap_line *line;
    bool stopped; /* the outcome is certain, or there is no memory */
    bool no_memory;
    bool in_file;     /* the words are an --args file's */
    uint64_t counted; /* words so far */
    struct list env, ops, warnings, lock_files, filters, caps, fds, layers;
    uint32_t seen_fd, seen_id, seen_text; /* a bit for each of these that had a value */
    int64_t perms;                        /* for the next op; -1: none */
    uint64_t size;                        /* the same; 0: none */
};

/* Ends the reading with a message, which is joined from parts. */
void reader_die(struct reader *r, const char *const *parts);
#define DIE(r, ...) reader_die((r), (const char *const[]){__VA_ARGS__, NULL})

void *reader_take(struct reader *r, uint64_t n);
void *reader_add(struct reader *r, struct list *list, uint64_t size);

const char *reader_text(struct reader *r, const char *const *parts);

/* Is it a whole number from 0 to INT_MAX? */
bool is_whole(struct number number);

/* Returns a descriptor's number, which is noted; or -1, when the reading has ended. */
int32_t reader_fd(struct reader *r, const char *text);

/* Reads a descriptor to its end, and closes it from 3 up. Behind the data is a NUL. Returns 0 or -errno; without memory
 * *data is NULL. at: whose memory. */
int read_all(void **at, int fd, uint8_t **data, uint64_t *len);

/* Reads the descriptor that a word names to its end; false if the reading has ended. what: for messages. */
bool reader_contents(struct reader *r, const char *word, const char *what, nsbox_bwrap_filter *found);

/* The options that become ops, and those about the next op. args: the option's. */
void ops_add(struct reader *r, const struct option *o, const char *const *args);
void ops_layer(struct reader *r, const struct option *o, const char *const *args);
void ops_perms(struct reader *r, const struct option *o, const char *const *args);
void ops_size(struct reader *r, const struct option *o, const char *const *args);

extern const char *const stray_layer;

/* ---- env.c */

void env_set(struct reader *r, const struct option *o, const char *const *args);
void env_unset(struct reader *r, const struct option *o, const char *const *args);

/* ---- needs.c: each may end the reading */

/* What bubblewrap refuses before it looks for a command; no user namespace is implied yet. */
void needs_of_namespaces(struct reader *r);
/* Options without the namespace that they need. uid, gid: the caller's. */
void needs_of_options(struct reader *r, uint32_t uid, uint32_t gid);

#endif
