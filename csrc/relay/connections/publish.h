/* publish.h: publishes ports of servers inside to clients outside. */
#ifndef NSBOX_RELAY_PUBLISH_H
#define NSBOX_RELAY_PUBLISH_H

#include "net/wire.h"

void publish(const nsbox_net_message *message, int fd);
void unpublish(uint64_t id);
enum { EVERY_SANDBOX = 0 };
void publications_end(uint64_t sandbox); /* those of this sandbox alone; EVERY_SANDBOX: all of them */
void publications_resume(void);

#endif
