/* events.h: what the relay tells its caller. */
#ifndef NSBOX_RELAY_EVENTS_H
#define NSBOX_RELAY_EVENTS_H

#include "relay.h"

struct event {
    const struct sandbox *sandbox; /* or NULL: of none */
    uint64_t id;                   /* of what is published; or 0 */
    uint32_t what, verdict, reason;
    int error;
    int protocol;
    uint16_t port;
    const union target *target; /* or NULL */
    const char *name, *sni;     /* or NULL */
    uint64_t sent, received;
    int64_t milliseconds;
};

void tell(const struct event *event);

#endif
