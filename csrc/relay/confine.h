/* confine.h: the relay takes from itself what it doesn't need. */
#ifndef NSBOX_RELAY_CONFINE_H
#define NSBOX_RELAY_CONFINE_H

/* 0, or -errno: then it must not begin. */
int confine(void);

#endif
