/* confine.h: the relay gives up what it doesn't need. */
#ifndef NSBOX_RELAY_CONFINE_H
#define NSBOX_RELAY_CONFINE_H

/* Each returns 0, or -errno, and then the relay must not start. */
int confine_capabilities(void); /* drops this thread's: call it before there are others */
int confine_files(void);        /* allows only reading files, by landlock(7), if the kernel has it */
int confine_calls(void);        /* allows only a few system calls, by seccomp(2) */

#endif
