/* enter.c: makes sockets in a sandbox's net namespace, in a child that shares our memory and descriptors.
 *
 * The child enters the namespace, we don't: a socket always belongs to the namespace in which it was made. The
 * parent waits for the child (CLONE_VFORK), so the child may use what belongs to the parent, even errno. A process
 * with several threads can't enter a user namespace (setns(2)); the child is a process of its own.
 */
#include "relay/base/relay.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 65536 };

struct visit {
    int (*make)(struct visit *);
    struct sandbox *sandbox;
    const struct rules *rules;
    int listener;
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

static int raw_socket(int protocol)
{
    int room = 1 << 20, fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    return fd;
}

/* Set a tap. If it fails, *tap stays as it was: there is never a tap without its filter. */
static int set_tap(struct source *tap, int fd, int ret)
{
    if (ret)
        close(fd);
    else
        tap->fd = fd;
    return ret;
}

static int make_tap(struct visit *v)
{
    int fd = raw_socket(IPPROTO_TCP);
    return fd < 0 ? fd : set_tap(&v->sandbox->tap, fd, filter_tap(fd, v->sandbox));
}

/* Make the tap that sees each datagram, also if none is allowed: those that are refused are reported. */
static int make_udp_tap(struct visit *v)
{
    int fd = v->sandbox->udp_tap.fd < 0 ? raw_socket(IPPROTO_UDP) : 0;
    return fd <= 0 ? fd : set_tap(&v->sandbox->udp_tap, fd, filter_udp_tap(fd));
}

/* Mark a socket. It is done here, where we have power over the namespace (CAP_NET_ADMIN, socket(7)). */
static int mark_socket(int fd)
{
    const uint32_t mark = MARK;
    return setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof mark) < 0 ? -errno : 0;
}

static int make_out(struct visit *v)
{
    int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW);
    if (fd < 0)
        return -errno;
    v->sandbox->out = fd;
    return mark_socket(fd);
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

/* Returns a free slot. Slots never move: events point to them. */
static struct listener *free_slot(struct sandbox *s)
{
    for (int i = 0; i < s->n_localhost; i++)
        if (s->localhost[i].source.fd < 0)
            return &s->localhost[i];
    return s->n_localhost < MOST_PORTS ? &s->localhost[s->n_localhost++] : NULL;
}

/* Make a listener for the port of an entry "localhost:PORT". */
static int make_localhost(struct visit *v, uint16_t port)
{
    int room = BUFFER;
    if (sandbox_listens(v->sandbox, port))
        return 0;
    struct listener *l = free_slot(v->sandbox);
    if (!l)
        return -E2BIG;
    *l = (struct listener){.source = {l->source.ready, tcp_socket(), v->sandbox}, .sandbox = v->sandbox, .port = port};
    l->address = INADDR_LOOPBACK;
    if (l->source.fd < 0)
        return l->source.fd;
    setsockopt(l->source.fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    int ret = filter_listener(l->source.fd);
    if (!ret)
        ret = bind_to(l->source.fd, INADDR_LOOPBACK, port);
    if (!ret && listen(l->source.fd, 4096) < 0)
        ret = -errno;
    if (ret)
        loop_close(&l->source);
    return ret;
}

/* Make the missing listeners. The caller's side makes sure that there are at most MOST_PORTS. If the command itself
 * listens at a port, that is no failure: the port stays the command's. */
static int make_ports(struct visit *v)
{
    for (uint32_t i = 0; i < v->rules->head->n_rules; i++) {
        const nsbox_net_rule *rule = &v->rules->rules[i];
        if (rule->flags & NSBOX_NET_DENY || rule->kind != NSBOX_NET_LOCALHOST)
            continue;
        for (uint32_t port = rule->first_port; port <= rule->last_port; port++) {
            int ret = make_localhost(v, (uint16_t)port);
            if (ret && ret != -EADDRINUSE)
                return ret;
        }
    }
    return 0;
}

static int add_spares(struct visit *v, int n)
{
    struct sandbox *s = v->sandbox;
    while (s->n_spares < n) {
        int fd = tcp_socket(), ret = fd < 0 ? fd : mark_socket(fd);
        if (ret < 0) {
            if (fd >= 0)
                close(fd);
            return s->n_spares ? 0 : ret;
        }
        s->spares[s->n_spares++] = fd;
    }
    return 0;
}

static int make_first_spares(struct visit *v)
{
    return add_spares(v, FIRST_SPARES);
}

static int make_spares(struct visit *v)
{
    return add_spares(v, MOST_SPARES);
}

struct step {
    const char *name;
    int (*make)(struct visit *);
};

static int make_all(struct visit *v, const struct step *steps, size_t n)
{
    int ret = 0;
    for (size_t i = 0; i < n && !ret; i++) {
        *v->step = steps[i].name;
        ret = steps[i].make(v);
    }
    return ret;
}

static int make_routes(struct visit *v)
{
    v->sandbox->refuses_udp |= v->rules->has_udp;
    return netlink_set_up(v->rules->has_udp);
}

static int make_datagrams(struct visit *v)
{
    v->sandbox->refuses_udp |= v->rules->has_udp;
    return netlink_update(v->rules->has_udp);
}

static int set_up(struct visit *v)
{
    static const struct step steps[] = {{"routes", make_routes},       {"raw socket", make_out}, {"names", make_dns},
                                        {"ports", make_ports},         {"tap", make_tap},        {"udp", make_udp_tap},
                                        {"sockets", make_first_spares}};
    return make_all(v, steps, sizeof steps / sizeof *steps);
}

/* Make a new tap, since its filter is locked and contains the ports. What the old one has seen isn't lost. */
static int update(struct visit *v)
{
    static const struct step steps[] = {
        {"ports", make_ports}, {"tap", make_tap}, {"udp", make_udp_tap}, {"routes", make_datagrams}};
    return make_all(v, steps, sizeof steps / sizeof *steps);
}

static int filter(struct visit *v)
{
    return filter_listener(v->listener);
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
    if (!v->ret)
        v->ret = v->make(v);
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
    return enter(&(struct visit){.make = set_up, .sandbox = sandbox, .rules = rules, .step = step});
}

int enter_update(struct sandbox *sandbox, const struct rules *rules, const char **step)
{
    return enter(&(struct visit){.make = update, .sandbox = sandbox, .rules = rules, .step = step});
}

int enter_spares(struct sandbox *sandbox, const char **step)
{
    *step = "sockets";
    return enter(&(struct visit){.make = make_spares, .sandbox = sandbox, .step = step});
}

int enter_filter(struct sandbox *sandbox, int listener)
{
    const char *step;
    return enter(&(struct visit){.make = filter, .sandbox = sandbox, .listener = listener, .step = &step});
}
