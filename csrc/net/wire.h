/* wire.h: what the caller's side and the relay send each other: a policy's list as a blob, and messages. */
#ifndef NSBOX_NET_WIRE_H
#define NSBOX_NET_WIRE_H

#include <stdint.h>

#define NSBOX_NET_MAGIC 0x746e736e /* "nsnt" */
enum { NSBOX_NET_VERSION = 1, NSBOX_NET_MOST = 8 << 20 /* bytes of a list */ };

/* What an entry names. */
enum {
    NSBOX_NET_NAME = 1,      /* this name */
    NSBOX_NET_BELOW = 2,     /* each name below this one */
    NSBOX_NET_ANY = 3,       /* each name, and each address that isn't special */
    NSBOX_NET_ADDRESSES = 4, /* these IPv4 addresses */
    NSBOX_NET_LOCALHOST = 5, /* 127.0.0.1 of the host */
};

/* Flags of an entry, and of the list. */
enum { NSBOX_NET_DENY = 1, NSBOX_NET_UDP = 2 };
enum { NSBOX_NET_PRIVATE = 1, NSBOX_NET_ASKS = 2 /* the caller is asked about what no entry decides */ };

/* How names of TLS servers are checked. */
enum { NSBOX_NET_TLS_SNI = 0, NSBOX_NET_TLS_ECH = 1 /* one with ECH passes */, NSBOX_NET_TLS_OFF = 2 };

typedef struct {
    uint32_t kind;
    uint32_t flags;
    uint32_t first_port, last_port; /* 1 to 65535 */
    uint32_t address;               /* ADDRESSES: in host order, with no bit set behind the prefix */
    uint32_t bits;                  /* 0 to 32 */
    uint32_t name, name_size;       /* NAME, BELOW: its place among the names, without a dot at the end */
} nsbox_net_rule;

/* At offset 0; then n_rules entries, then the names. */
typedef struct {
    uint32_t magic;
    uint32_t version;
    uint32_t size; /* of the whole blob */
    uint32_t n_rules;
    uint32_t flags;
    uint32_t tls;
    uint32_t connections; /* how many at once, for each sandbox */
    uint32_t reserved;
    uint64_t bytes; /* how many in both directions, for each sandbox; 0: no limit */
} nsbox_net_rules;

/* ---- messages, through a socket of type SOCK_SEQPACKET: one packet each, a head and what its kind has after it */

/* To the relay; in brackets the descriptors that come with it. */
enum {
    /* A new sandbox [its net namespace, its first process as a pidfd, a socket for READY]. value 1: it goes on when
     * the caller has ended. */
    NSBOX_NET_OPEN = 1,
    /* A new list, also for what is running [the list as a file, a socket for READY]. */
    NSBOX_NET_RULES = 2,
    /* The answer to the ASK of this id: value is 0 for no, 1 for yes, which holds for as long as the sandbox does. */
    NSBOX_NET_VERDICT = 3,
    /* Connect clients of a listening socket of the host's to port `value` of 127.0.0.1 in this sandbox [that
     * socket]. Sandbox 0: in the newest one that listens there. The caller chooses the id. */
    NSBOX_NET_PUBLISH = 4,
    /* Close the socket of this id. Open connections stay. */
    NSBOX_NET_UNPUBLISH = 5,
    /* Send READY once everything that has happened by now is reported [a socket for READY]. */
    NSBOX_NET_SETTLE = 6,
    /* For csrc/proxy alone, which uses a stream, without descriptors. The list follows RULES, in `value` bytes; OPEN
     * has the sandbox's secret as its id. END: this sandbox has ended, with all its connections. */
    NSBOX_NET_END = 7,
};

/* From the relay: each is an event whose head has that kind. */
enum {
    NSBOX_NET_READY =
        1, /* through the socket that came with OPEN or RULES: value is 0, or -errno; name says at which step */
    NSBOX_NET_EVENT = 2, /* value: how many events were lost so far */
    NSBOX_NET_ASK = 3,   /* of this id: may the sandbox connect to that name or address, at that port? */
};

typedef struct {
    uint32_t kind;
    int32_t value;
    uint64_t sandbox;
    uint64_t id; /* of an ASK, or of what is published; else 0 */
} nsbox_net_message;

/* What an event is about, how it ended, and why. */
enum {
    NSBOX_NET_DNS = 1,
    NSBOX_NET_CONNECT = 2,
    NSBOX_NET_CLOSE = 3,
    NSBOX_NET_DATAGRAM = 4,
    NSBOX_NET_PUBLISHED = 5 /* a client of a published port: it came, or failed; its end is a CLOSE with the same id */
};
enum { NSBOX_NET_ALLOWED = 1, NSBOX_NET_REFUSED = 2, NSBOX_NET_FAILED = 3 };
enum {
    NSBOX_NET_NO_REASON = 0,
    NSBOX_NET_NOT_LISTED = 1,
    NSBOX_NET_DENIED = 2,
    NSBOX_NET_ADDRESS = 3,     /* one that no name may have */
    NSBOX_NET_OWN_ADDRESS = 4, /* one of the host's */
    NSBOX_NET_SNI = 5,
    NSBOX_NET_NO_TLS = 6,
    NSBOX_NET_ECH = 7,
    NSBOX_NET_PORT_TAKEN = 8, /* by a server of the command's on all addresses */
    NSBOX_NET_LIMIT = 9,
    NSBOX_NET_ASKED = 10,    /* the caller's answer; or, if it was refused, no answer came */
    NSBOX_NET_UPSTREAM = 11, /* the server, or the host's resolver */
    NSBOX_NET_UNASKED = 12,  /* of an answer about a name: the caller is asked only at the first connection */
};

enum { NSBOX_NET_NAME_SIZE = 256 };

typedef struct {
    nsbox_net_message head;
    uint64_t time; /* nanoseconds since 1970 */
    uint32_t what, verdict, reason;
    int32_t error; /* an errno, or 0 */
    uint32_t protocol, port;
    uint32_t family; /* of address: 4, 6, or 0 for none */
    uint32_t milliseconds;
    uint64_t sent, received;
    uint8_t address[16];
    char name[NSBOX_NET_NAME_SIZE]; /* of letters, digits, "-", "_" and "."; or "" */
    char sni[NSBOX_NET_NAME_SIZE];
} nsbox_net_event;

#endif
