/* lookup.h: looks names up as the host does (getaddrinfo(3)), in threads, since that may take half a minute.
 *
 * A thread does one lookup at a time. The thread that asks adds lookups and takes back those that are done.
 */
#ifndef NSBOX_NET_LOOKUP_H
#define NSBOX_NET_LOOKUP_H

#include "address.h"
#include "hello.h"

enum { LOOKUP_SHARE = 4 }; /* threads for one owner of lookups */

struct lookup {
    struct lookup *next;
    int *n_busy;  /* counts the threads that work for its owner; or NULL: the owner may have all */
    int is_taken; /* by a thread */
    char name[HELLO_NAME];
    union address targets[MOST_TARGETS];
    int n_targets, error; /* of getaddrinfo(3) */
};

/* Begin. wake: where eight bytes are written when a lookup is done, an eventfd or a pipe; it doesn't block. */
void lookup_start(int wake);

/* Queue a lookup. 0: there is no thread for it. */
int lookup_add(struct lookup *lookup);

/* Returns all that are done, as a list. */
struct lookup *lookup_done(void);

/* Hand a waiting lookup, whose owner has used up its share of threads, to another owner that hasn't. 1: it belongs to
 * the new one now. */
int lookup_adopt(struct lookup *lookup, int *n_busy);

#endif
