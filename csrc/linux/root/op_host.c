/* op_host.c: the ops about the host that a command sees: its name, and its network's lo. */
#include "ops.h"

int op_hostname(struct builder *b, const nsbox_op *op)
{
    const char *name = plan_str(b->plan, op->src);
    size_t n = 0;
    while (name[n])
        n++;
    TRY(b, NSBOX_STEP_SET, sys_sethostname(name, n));
    return 0;
}

/* Brings lo up; the kernel then gives it 127.0.0.1/8 and ::1. */
int loopback_up(void)
{
    int fd = sys_socket(2 /* AF_INET */, 2 /* SOCK_DGRAM */ | SYS_O_CLOEXEC, 0);
    if (fd < 0)
        return fd;
    struct sys_ifreq request = {.name = "lo", .flags = 1 /* IFF_UP */};
    int ret = sys_ioctl(fd, 0x8914 /* SIOCSIFFLAGS */, &request);
    sys_close(fd);
    return ret;
}

/* Lets the command use all ports of the net namespace that we are in, as in containers: no other user has services
 * there. Where the setting can't be written, ports below 1024 stay what they are elsewhere. settings: /proc/sys/net,
 * or -1. */
void open_ports(int settings)
{
    int fd = settings < 0 ? -1 : sys_openat(settings, "ipv4/ip_unprivileged_port_start", O_WRONLY, 0);
    if (fd >= 0)
        sys_write(fd, "0", 1);
    sys_close(fd);
}

/* Does nothing: the init brings lo up when it makes the net namespace. */
int op_loopback(struct builder *b, const nsbox_op *op)
{
    (void)b;
    (void)op;
    return 0;
}
