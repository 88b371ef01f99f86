/* confine.h: the relay gives up what it doesn't need. */
#ifndef NSBOX_RELAY_CONFINE_H
#define NSBOX_RELAY_CONFINE_H

/* Each returns 0; or -errno: then the relay must not begin. */
int confine_capabilities(void); /* of this thread: before there are others */
int confine_files(void);        /* only read files, by landlock(7), if the kernel has that */
int confine_calls(void);        /* only make a few system calls, by seccomp(2) */

#endif
