/* relay.h: what the parts of the relay share: sources of events, sandboxes, names, connections.
 *
 * The relay lives in the host's net namespace, as a process of its own. It has sockets in each sandbox's net
 * namespace: one sees each SYN, one answers questions about names, and one is made for each server as soon as the
 * relay is connected to it.
 */
#ifndef NSBOX_RELAY_H
#define NSBOX_RELAY_H

#include "net/address.h"
#include "net/rules.h"
#include "relay/parsers/dns.h"
#include "relay/parsers/packet.h"
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Addresses inside: names get invented ones in 198.18.0.0/16, our own are in 198.19.0.0/24 (RFC 2544). */
enum { INVENTED_FIRST = INVENTED + 256 };
enum { OWN_ADDRESS = 0xc6130001, OWN_DNS = 0xc6130035, OWN_NET = 0xc6130000, OWN_BITS = 24 };
enum { MARK = 0x6e73 }; /* marks our own packets */

enum {
    MOST_NAMES = 16384,
    MOST_NAMES_OF_ONE = 4096,
    MOST_FLOWS = 256,
    MOST_TOLD = 16, /* destinations of refused datagrams */
    MOST_LISTENERS = 64,
    MOST_SPARES = 8,
    FIRST_SPARES = 2, /* most sandboxes need no more */
    MOST_PORTS = 64
};
enum { BUFFER = 256 * 1024, SECOND = 1000, BUCKETS = 256 };

/* A source of epoll(7)'s events. ready() may free its source only through later_free(): events in the same batch
 * point to it. */
struct source {
    void (*ready)(struct source *source, uint32_t events);
    int fd;                  /* or -1 */
    struct sandbox *sandbox; /* that its time counts for; or NULL */
};

/* A name that was asked for, and its addresses on the host. */
struct name {
    char text[DNS_NAME];
    uint32_t address; /* the invented one */
    union address targets[MOST_TARGETS];
    int n_targets;
    enum dns_code code;
    int64_t fresh_until;
    int is_busy;     /* it is being looked up */
    struct job *job; /* the job that looks it up */
    int is_told;     /* a sandbox knows its address, so it is kept */
    struct name *next_unknown;
    struct waiter *waiters;
};

/* Waits for a name. done() gets it back, and frees it. */
struct waiter {
    void (*done)(struct waiter *waiter, struct name *name);
    struct waiter *next, **link;
};

struct listener {
    struct source source;
    struct sandbox *sandbox;
    uint32_t address;
    uint16_t port;
    uint64_t used;  /* when, by a counter */
    int n_expected; /* connections on their way to it */
    int is_paused;  /* no descriptor was free for a new connection */
    int is_watched; /* by the loop */
};

struct connection;

/* A destination whose refused datagrams were reported in that second: a flood makes few reports. */
struct told_udp {
    uint32_t address;
    uint16_t port;
    int64_t second;
};

/* A sandbox, from the message that announces it to the end of its first process. */
struct sandbox {
    uint64_t id, serial; /* serial: counts sandboxes, from 1 */
    int user_namespace, net_namespace;
    int outlives;          /* it goes on when the caller has ended */
    struct source end;     /* its first process */
    struct source tap;     /* sees each SYN */
    struct source udp_tap; /* sees each datagram */
    int refuses_udp;       /* we answer those that are refused; else the kernel does (netlink.c) */
    struct told_udp told_udp[MOST_TOLD];
    unsigned n_told_udp;
    int out; /* sends packets of ours */
    struct source dns_udp, dns_tcp;
    int spares[MOST_SPARES], n_spares;
    struct listener listeners[MOST_LISTENERS];
    struct listener localhost[MOST_PORTS];
    int n_localhost;
    struct connection *connections[BUCKETS]; /* by the client's port */
    struct ask *asks[BUCKETS];               /* by destination */
    uint32_t n_asks, n_pending;
    struct flow *flows;
    struct stream *streams;
    uint32_t n_connections, n_flows, n_questions, n_streams;
    int is_ended;
    int64_t next_tick; /* of its connections */
    uint64_t bytes;
    uint32_t n_names;                    /* names whose address it got before all others */
    uint8_t known_names[MOST_NAMES / 8]; /* a bit for each name: it knows the address */
    uint8_t used[MOST_NAMES / 8];        /* it has connected to it, however it learned the address */
    uint64_t turn;                       /* the loop's turn in which it last had something to do */
    int64_t spent;                       /* nanoseconds in that turn */
    int n_jobs, n_busy;                  /* names being looked up for it; those that have a thread just now */
    int is_dns_paused;
    int64_t names_since;
    uint32_t new_names; /* in this second */
    struct sandbox *next;
};

/* loop.c */
int64_t now(void); /* milliseconds */
int loop_add(struct source *source, uint32_t events);
void loop_change(struct source *source, uint32_t events);
void loop_remove(struct source *source);
void loop_close(struct source *source); /* closes its descriptor, if there is one */
void later_free(void *memory);

/* Returns the new descriptor if it is within a sandbox's share; otherwise closes it and returns -1 with EMFILE. The
 * last descriptors are kept back, so that the caller's messages and new sandboxes get through even if a sandbox has
 * used up all others. */
int within_share(int fd);
void loop_run(
    int (*tick)(void)); /* tick: called after each batch; returns the milliseconds until it must be called again */

/* enter.c: what needs the sandbox's namespaces. Each returns 0 or -errno, and *step says what failed. */
int enter_set_up(struct sandbox *sandbox, const struct rules *rules, const char **step);
int enter_update(struct sandbox *sandbox, const struct rules *rules, const char **step);
int enter_spares(struct sandbox *sandbox, const char **step);
int enter_filter(struct sandbox *sandbox, int listener);

/* netlink.c */
int netlink_set_up(int has_udp);
int netlink_update(int has_udp);

/* filter.c */
int filter_tap(int fd, const struct sandbox *sandbox);
int filter_udp_tap(int fd);
int filter_listener(int fd);

/* names.c */
struct name *name_by_text(const char *text);
struct name *name_by_address(uint32_t address);             /* one that a sandbox was given */
struct name *name_add(const char *text);                    /* NULL: there are too many */
void name_tell(struct sandbox *sandbox, struct name *name); /* it gets the address */
int name_is_told(const struct sandbox *sandbox, const struct name *name);
void name_use(struct sandbox *sandbox, const struct name *name); /* the name is kept for this sandbox too */
void names_tick(int64_t time);

/* own.c */
int is_own_address(const union address *target); /* one of the host's, or unknown */
int may_reach(const union address *target, uint16_t port, int protocol, uint32_t *reason); /* an address of a name */

/* resolve.c: done() is called at once, or later from the loop. sandbox: the one that a thread's work counts for. */
int resolve_start(void);
void resolve(struct sandbox *sandbox, struct name *name, struct waiter *waiter);
void resolve_forget(struct waiter *waiter); /* done() isn't called any more */

/* answer.c */
void on_dns_udp(struct source *source, uint32_t events);

/* stream.c */
void on_dns_tcp(struct source *source, uint32_t events);
void streams_end(struct sandbox *sandbox);
void streams_tick(struct sandbox *sandbox, int64_t time);
void streams_resume(struct sandbox *sandbox);

/* tap.c */
void on_tap(struct source *source, uint32_t events);

/* listen.c */
void on_listener(struct source *source, uint32_t events);
void listeners_resume(struct sandbox *sandbox);

/* connect.c */
void connections_end(struct sandbox *sandbox);
int64_t connections_tick(struct sandbox *sandbox); /* returns when it is to be called again */

/* refusal.c */
void send_packet(const struct sandbox *sandbox, const uint8_t *packet, size_t size, uint32_t target);

/* udp.c */
void on_udp_tap(struct source *source, uint32_t events);
void flows_end(struct sandbox *sandbox);
void flows_revoke(struct sandbox *sandbox);
void flows_tick(struct sandbox *sandbox, int64_t time);

/* list.c */
extern struct rules list;
int list_load(int fd, struct rules *rules); /* 0 or -errno */
int list_read(int fd);                      /* sets the one in force: 0, or -errno, and then nothing has changed */

/* sandboxes.c */
struct sandbox *sandbox_newest(void);
void sandbox_add(struct sandbox *sandbox);
void sandbox_remove(const struct sandbox *sandbox);
int sandbox_listens(const struct sandbox *sandbox, uint16_t port); /* at 127.0.0.1, for a server of the host */
int sandbox_watch(struct listener *listener);                      /* if it isn't watched yet */
int sandbox_is_over_limit(struct sandbox *sandbox, size_t bytes);  /* counts them */
void sandbox_free(struct sandbox *sandbox);                        /* if it has ended, and isn't used any more */
int sandboxes_left(void);

/* sandbox.c */
void sandbox_open(const nsbox_net_message *message, int net_namespace, int process, int answer);
void sandboxes_end_with_caller(void);
int sandboxes_tick(void); /* returns the milliseconds until the next call */

#endif
