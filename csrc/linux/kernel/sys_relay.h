/* sys_relay.h: the system calls that are made for the relay alone, besides those of sys.h; part of the audit list. */
#ifndef NSBOX_SYS_RELAY_H
#define NSBOX_SYS_RELAY_H

#include "sys.h"

/* Type SOCK_SEQPACKET, family AF_UNIX. */
static inline int sys_packet_pair(int ends[2])
{
    return (int)S4(__NR_socketpair, 1, 5 | SYS_O_CLOEXEC, 0, ends);
}

#endif
