/* message.h: sendmsg(2) and recvmsg(2): their argument as the kernel defines it, and descriptors as what is sent. */
#ifndef NSBOX_MESSAGE_H
#define NSBOX_MESSAGE_H

#include "sys.h"

#include <stddef.h>

enum { MSG_DONTWAIT = 0x40, MSG_CMSG_CLOEXEC = 0x40000000 };

struct iovec {
    void *base;
    size_t len;
};

/* The kernel's struct user_msghdr. */
struct message {
    void *name;
    size_t n_name;
    struct iovec *iov;
    size_t n_iov;
    void *control;
    size_t n_control;
    size_t flags;
};

/* Returns a descriptor from 3 up for one that may be lower, or -errno. */
static inline int move_high(int fd)
{
    if (fd < 0 || fd > 2)
        return fd;
    int high = sys_dupfd_cloexec(fd, 3);
    sys_close(fd);
    return high;
}

int send_fds(int socket, const int *fds, unsigned n);
int receive_fds(int socket, int *fds, unsigned n, int flags); /* flags: 0 or MSG_DONTWAIT */

#endif
