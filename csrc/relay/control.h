/* control.h: the caller's requests, which arrive through a socket. */
#ifndef NSBOX_RELAY_CONTROL_H
#define NSBOX_RELAY_CONTROL_H

/* Put a new list in place of the one in force: replacement.c. */
void list_replace(int fd, int answer);

/* Serve the caller through this socket, as long as its process exists. 0 or -errno. */
int control_start(int socket, int caller);

/* Called after each batch of events. Returns whether another batch must follow at once. */
int control_tick(void);

#endif
