/* enter.c: sockets in a sandbox's net namespace, made by a child that shares our memory and descriptors.
 *
 * The child enters, we don't: a socket belongs to the namespace that it was made in for ever. The parent waits for the
 * child (CLONE_VFORK), which so may use what is the parent's, errno too. A process of several threads can't enter a user
 * namespace (setns(2)); the child is one of its own.
 */
#include "relay.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 65536 };

struct visit {
    struct sandbox *sandbox;
    const struct rules *rules; /* or NULL: only spares */
    const char **step;
    int ret;
};

static int tcp_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 ? -errno : fd;
}

static int bind_to(int fd, uint32_t address, uint16_t port)
{
    const struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address)};
    return bind(fd, (const struct sockaddr *)&to, sizeof to) < 0 ? -errno : 0;
}

static int make_tap(struct visit *v)
{
    int room = 1 << 20, fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0)
        return -errno;
    v->sandbox->tap.fd = fd;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    return filter_tap(fd, v->rules);
}

static int make_out(struct visit *v)
{
    uint32_t mark = MARK;
    int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);
    if (fd < 0)
        return -errno;
    v->sandbox->out = fd;
    return setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof mark) < 0 ? -errno : 0;
}

static int make_dns(struct visit *v)
{
    struct sandbox *s = v->sandbox;
    s->dns_udp.fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->dns_udp.fd < 0)
        return -errno;
    int ret = s->dns_tcp.fd = tcp_socket();
    if (ret < 0 || (ret = bind_to(s->dns_udp.fd, OWN_DNS, 53)) < 0 || (ret = bind_to(s->dns_tcp.fd, OWN_DNS, 53)) < 0)
        return ret;
    return listen(s->dns_tcp.fd, 16) < 0 ? -errno : 0;
}

/* One listener for each port of an entry "localhost:PORT". */
static int make_localhost(struct visit *v, uint16_t port)
{
    struct listener *l = &v->sandbox->localhost[v->sandbox->n_localhost];
    int room = BUFFER;
    for (int i = 0; i < v->sandbox->n_localhost; i++)
        if (v->sandbox->localhost[i].port == port)
            return 0;
    *l = (struct listener){.source = {on_listener, tcp_socket()}, .sandbox = v->sandbox, .port = port};
    l->address = INADDR_LOOPBACK;
    if (l->source.fd < 0)
        return l->source.fd;
    v->sandbox->n_localhost++;
    setsockopt(l->source.fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    int ret = filter_listener(l->source.fd);
    if (!ret)
        ret = bind_to(l->source.fd, INADDR_LOOPBACK, port);
    return ret ? ret : listen(l->source.fd, 4096) < 0 ? -errno : 0;
}

/* One socket for each UDP port that is listed: it says for which address a datagram was (IP_PKTINFO, ip(7)). */
static int make_udp(struct visit *v, uint16_t port)
{
    int on = 1;
    struct udp_port *u = &v->sandbox->udp[v->sandbox->n_udp];
    for (int i = 0; i < v->sandbox->n_udp; i++)
        if (v->sandbox->udp[i].port == port)
            return 0;
    *u = (struct udp_port){.source = {on_udp, -1}, .sandbox = v->sandbox, .port = port};
    u->source.fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (u->source.fd < 0)
        return -errno;
    v->sandbox->n_udp++;
    if (setsockopt(u->source.fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on) < 0)
        return -errno;
    return bind_to(u->source.fd, INADDR_ANY, port);
}

/* The sockets for single ports. The caller's side has seen to it that there are no more than MOST_PORTS. */
static int make_ports(struct visit *v)
{
    for (uint32_t i = 0; i < v->rules->head->n_rules; i++) {
        const nsbox_net_rule *rule = &v->rules->rules[i];
        int is_udp = rule->flags & NSBOX_NET_UDP, is_local = rule->kind == NSBOX_NET_LOCALHOST;
        if (rule->flags & NSBOX_NET_DENY || (!is_udp && !is_local))
            continue;
        for (uint32_t port = rule->first_port; port <= rule->last_port; port++) {
            int is_full = (is_local ? v->sandbox->n_localhost : v->sandbox->n_udp) == MOST_PORTS;
            int ret = is_full ? -E2BIG : is_local ? make_localhost(v, (uint16_t)port) : make_udp(v, (uint16_t)port);
            if (ret)
                return ret;
        }
    }
    return 0;
}

static int make_spares(struct visit *v)
{
    struct sandbox *s = v->sandbox;
    while (s->n_spares < MOST_SPARES) {
        int fd = tcp_socket();
        if (fd < 0)
            return s->n_spares ? 0 : fd;
        s->spares[s->n_spares++] = fd;
    }
    return 0;
}

static int set_up(struct visit *v)
{
    static const struct {
        const char *step;
        int (*make)(struct visit *);
    } steps[] = {{"tap", make_tap}, {"raw socket", make_out}, {"names", make_dns}, {"ports", make_ports}};
    *v->step = "routes";
    int ret = netlink_set_up(v->rules);
    for (size_t i = 0; i < sizeof steps / sizeof *steps && !ret; i++) {
        *v->step = steps[i].step;
        ret = steps[i].make(v);
    }
    return ret;
}

static int visit(void *argument)
{
    struct visit *v = argument;
    *v->step = "user namespace";
    v->ret = setns(v->sandbox->user_namespace, CLONE_NEWUSER) < 0 ? -errno : 0;
    if (v->ret)
        return 0;
    *v->step = "net namespace";
    v->ret = setns(v->sandbox->net_namespace, CLONE_NEWNET) < 0 ? -errno : 0;
    if (!v->ret && v->rules)
        v->ret = set_up(v);
    if (v->ret)
        return 0;
    *v->step = "sockets";
    v->ret = make_spares(v);
    return 0;
}

/* No signal handler runs in the child: we have none. */
static int enter(struct visit *v)
{
    static _Alignas(16) uint8_t stack[STACK];
    *v->step = "child";
    int pid = clone(visit, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_FILES, v);
    if (pid < 0)
        return -errno;
    while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
        ;
    return v->ret;
}

int enter_set_up(struct sandbox *sandbox, const struct rules *rules, const char **step)
{
    return enter(&(struct visit){.sandbox = sandbox, .rules = rules, .step = step});
}

int enter_spares(struct sandbox *sandbox, const char **step)
{
    return enter(&(struct visit){.sandbox = sandbox, .step = step});
}
