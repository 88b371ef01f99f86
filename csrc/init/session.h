/* session.h: what the parts of pid 1 of a session share. */
#ifndef NSBOX_SESSION_H
#define NSBOX_SESSION_H

#include "abi.h"
#include "linux/kernel/sys_session.h"

enum { MOST_FDS = 250 };

/* What comes with a request before the descriptors that the command gets. */
enum { REQUEST, TOLD, FAILED, GIVEN };

/* One request; the child has a copy. */
struct entry {
    const nsbox_entry *head;
    int fds[MOST_FDS];
    int n_fds;
    uint64_t mark;
};

extern struct entry entry;

/* command.c: from a request to the exec. signals_queued: the limit that it gets back. */
void command(void *signals_queued);

/* ids.c: the ids that a command gets, and the capabilities for that, which it doesn't get. */
int ids_begin(void);
int ids_become(uint32_t uid, uint32_t gid);
int ids_take(const nsbox_entry *head, uint32_t *step);

/* started.c: what a command has started. */
void marks_begin(uint64_t secret);
uint64_t mark_next(void);
int mark_self(uint64_t mark);
uint64_t signal_marked(uint64_t mark, int number, uint64_t most);

/* A request that isn't to start a command. There is room for two names with their NULs, and one NUL more. */
enum { NAMES = 2 * 256 + 1 };
struct request {
    nsbox_asking asking;
    char names[NAMES];
};

/* names.c: the root, and new names, for the caller's file tools. */
int names_serve(const struct request *request, const int *dirs, int n, nsbox_told_entry *report);

/* output.c: keeps what the processes that a command left running print. Each may have two descriptors to watch. */
enum { MOST_OUTPUTS = 64 };
int64_t output_keep(const int *pipes, int n, int with_file);
unsigned output_watch(struct pollfd *watched);
void output_take(const struct pollfd *watched, unsigned n);

#endif
