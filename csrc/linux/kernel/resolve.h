/* resolve.h: opens paths on which links may have been planted: a descriptor (O_PATH) or -errno. */
#ifndef NSBOX_RESOLVE_H
#define NSBOX_RESOLVE_H

#include "abi.h"
#include "sys.h"

int open_inside(int root, const char *path, int nofollow); /* as for a process that has this root */
int open_plainly(const char *path);                        /* absolute, without any link */
int walk_plainly(int at, const char *path);                /* the same by single steps from at, which is closed */

#endif
