/* message.h: the argument of sendmsg(2) and recvmsg(2) as the kernel defines it. */
#ifndef NSBOX_MESSAGE_H
#define NSBOX_MESSAGE_H

#include <stddef.h>

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

#endif
