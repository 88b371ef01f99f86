/* confine.h: the relay takes from itself what it doesn't need. */
#ifndef NSBOX_RELAY_CONFINE_H
#define NSBOX_RELAY_CONFINE_H

/* Each returns 0, or -errno: then it must not begin. */
int confine_capabilities(void); /* of this thread: before there are others */
int confine_files(void);        /* read files, by landlock(7), where the kernel has that */
int confine_calls(void);        /* make few system calls, by seccomp(2) */

#endif
