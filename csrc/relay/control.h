/* control.h: what the caller asks for, by a socket. */
#ifndef NSBOX_RELAY_CONTROL_H
#define NSBOX_RELAY_CONTROL_H

/* A new list in place of the one in force: replacement.c. */
void list_replace(int fd, int answer);

/* Serve the caller by this socket, as long as its process is there. 0 or -errno. */
int control_start(int socket, int caller);

/* After each batch of events. Is there to be another one at once? */
int control_tick(void);

#endif
