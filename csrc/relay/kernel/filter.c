/* filter.c: filters by which the kernel decides which packets our sockets in a sandbox get (socket(7),
 * SO_ATTACH_FILTER). */
#include "relay/base/relay.h"
#include <errno.h>
#include <linux/filter.h>

#define LOAD(size, from) BPF_STMT(BPF_LD | (size) | BPF_ABS, (uint32_t)(from))
#define LOAD_BEHIND(size, from) BPF_STMT(BPF_LD | (size) | BPF_IND, (uint32_t)(from))
#define IS(value, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), yes, no)
#define HAS(bits, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (uint32_t)(bits), yes, no)
#define NO BPF_STMT(BPF_RET | BPF_K, 0)
#define YES(bytes) BPF_STMT(BPF_RET | BPF_K, (uint32_t)(bytes))
#define ITS_MARK (SKF_AD_OFF + SKF_AD_MARK)

enum { SYN = 0x02, ACK = 0x10, AT_FRAGMENT = 6, AT_TARGET = 16, TARGET_PORT = 2, TCP_FLAGS = 13 };

static int attach(int fd, struct sock_filter *filter, size_t n)
{
    int on = 1;
    struct sock_fprog program = {(unsigned short)n, filter};
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &on, sizeof on) < 0)
        return -errno;
    return 0;
}

/* Accept each SYN without our mark, except to our own addresses; to 127/8 only at the ports where we listen. */
int filter_tap(int fd, const struct sandbox *sandbox)
{
    struct sock_filter filter[32 + 2 * MOST_PORTS] = {
        LOAD(BPF_W, ITS_MARK),
        IS(MARK, 0, 1),
        NO,
        LOAD(BPF_H, AT_FRAGMENT),
        HAS(0x1fff, 0, 1),
        NO,
        BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 0), /* the length of the IP header */
        LOAD_BEHIND(BPF_B, TCP_FLAGS),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, SYN | ACK),
        IS(SYN, 1, 0),
        NO,
        LOAD(BPF_W, AT_TARGET),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, UINT32_MAX << (32 - OWN_BITS)),
        IS(OWN_NET, 0, 1),
        NO,
        LOAD(BPF_B, AT_TARGET),
        IS(127, 1, 0),
        YES(65535),
        LOAD_BEHIND(BPF_H, TARGET_PORT),
    };
    size_t n = 19;
    for (int i = 0; i < sandbox->n_localhost; i++) {
        if (sandbox->localhost[i].source.fd < 0)
            continue;
        filter[n++] = (struct sock_filter)IS(sandbox->localhost[i].port, 0, 1);
        filter[n++] = (struct sock_filter)YES(65535);
    }
    filter[n++] = (struct sock_filter)NO;
    return attach(fd, filter, n);
}

/* Accept each datagram without our mark, except to our own addresses and to 127/8. */
int filter_udp_tap(int fd)
{
    struct sock_filter filter[] = {
        LOAD(BPF_W, ITS_MARK),
        IS(MARK, 0, 1),
        NO,
        LOAD(BPF_W, AT_TARGET),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, UINT32_MAX << (32 - OWN_BITS)),
        IS(OWN_NET, 0, 1),
        NO,
        LOAD(BPF_B, AT_TARGET),
        IS(127, 0, 1),
        NO,
        YES(65535),
    };
    return attach(fd, filter, sizeof filter / sizeof *filter);
}

/* Filter a listener's packets, which begin at the TCP header: a SYN needs our mark. */
int filter_listener(int fd)
{
    struct sock_filter filter[] = {
        LOAD(BPF_B, TCP_FLAGS), HAS(SYN, 0, 2), LOAD(BPF_W, ITS_MARK), IS(MARK, 0, 1), YES(UINT32_MAX), NO,
    };
    return attach(fd, filter, sizeof filter / sizeof *filter);
}
