/* net.c: the sandbox's net namespace: making it, bringing its lo up, joining it.
 *
 * Making it takes the kernel longer than everything else. So the init makes it while the mediator mounts, and the
 * command joins it there. Without an init the mediator makes it, and the command is in it from the beginning.
 */
#include "isolation.h"

/* Brings lo up in the net namespace that we are in, if the plan says so. */
static int set_lo(struct job *j, uint32_t *step, int32_t *op)
{
    for (uint32_t i = 0, n = plan_nops(j->req->plan); i < n; i++) {
        if (plan_op(j->req->plan, i)->code != NSBOX_OP_LOOPBACK)
            continue;
        *step = NSBOX_STEP_SET;
        *op = (int32_t)i;
        open_ports(j->net.settings);
        sys_close(j->net.settings); /* the number stays known: the command closes its copy, which it may have by now */
        return loopback_up();
    }
    return 0;
}

static int make_bare_net(struct job *j)
{
    j->net.step = NSBOX_STEP_UNSHARE;
    j->net.op = -1;
    return sys_unshare(CLONE_NEWNET);
}

/* Makes a net namespace, and brings its lo up if the plan says so. */
int make_net(struct job *j)
{
    int ret = make_bare_net(j);
    return ret < 0 ? ret : set_lo(j, &j->net.step, &j->net.op);
}

/* Is lo for us to bring up? True for the first process that asks. */
static int takes_lo(struct job *j)
{
    return !__atomic_exchange_n(&j->net.lo_is_taken, 1, __ATOMIC_ACQ_REL);
}

/* Returns a descriptor of our net namespace, through a socket in it (Linux 4.9; we have the capability in it). */
int own_net(void)
{
    int fd = sys_socket(2 /* AF_INET */, 2 /* SOCK_DGRAM */ | SYS_O_CLOEXEC, 0);
    int ret = fd < 0 ? fd : sys_ioctl(fd, 0x894c /* SIOCGSKNS */, 0);
    if (fd >= 0)
        sys_close(fd);
    return ret;
}

/* The same, for the init; leaves lo to the mediator if that has claimed it. */
int make_net_early(struct job *j)
{
    int ret = make_bare_net(j);
    if (ret >= 0 && wants_relay(j->req)) { /* first: it works beside us */
        j->net.step = NSBOX_STEP_NET;
        ret = relay_show(j, own_net());
    }
    if (ret >= 0 && takes_lo(j))
        ret = set_lo(j, &j->net.step, &j->net.op);
    if (ret >= 0 && joins_net_first(j))
        ret = j->net.fd = own_net();
    return ret < 0 ? ret : 0;
}

/* Returns when the net namespace has been made, or couldn't be: net_join() says which. */
int net_await(struct job *j)
{
    return j->req->namespaces & CLONE_NEWPID && makes_net(j->req) ? await_made(j, MADE_NET) : 0;
}

/* Returns why the net namespace couldn't be made, for a process that doesn't join it; 0 if it was made, or there is
 * none. */
int net_outcome(struct job *j, int32_t *op)
{
    if (!makes_net(j->req) || j->net.error >= 0)
        return 0;
    *op = j->net.op;
    TRY(&j->b, j->net.step, j->net.error);
    return 0;
}

/* Without an init, the mediator makes it and shares it with the command. */
int net_without_init(struct job *j, int32_t *op)
{
    if (!makes_net(j->req))
        return 0;
    int ret = make_net(j);
    j->b.step = j->net.step;
    *op = ret < 0 ? j->net.op : -1;
    return ret;
}

int net_join(struct job *j, uint32_t *step, int32_t *op)
{
    if (!makes_net(j->req) || !has_init(j) || j->net.is_joined)
        return 0;
    *step = NSBOX_STEP_INIT;
    int ret = await_made(j, MADE_NET);
    if (ret < 0)
        return ret;
    *step = j->net.step;
    *op = j->net.op;
    if (j->net.error < 0)
        return j->net.error;
    *step = NSBOX_STEP_UNSHARE;
    *op = -1;
    int fd = j->net.fd >= 0 ? j->net.fd : j->init.pidfd;
    ret = sys_setns(fd, CLONE_NEWNET);
    /* Up to its exec the init has the caller's memory. If that isn't dumpable, for good or while a mediator changes
     * its ids (kernel_id.c), the init can't be looked at until its exec. */
    for (int i = 0; i < LOOKS && ret == -EPERM; i++) {
        pause_look(i);
        ret = sys_setns(fd, CLONE_NEWNET);
    }
    return ret;
}

/* Joins it in the mediator, so that the command is in it from its first moment. */
int net_join_first(struct job *j, int32_t *op)
{
    int ret = joins_net_first(j) ? net_join(j, &j->b.step, op) : 0;
    if (ret < 0 || !joins_net_first(j))
        return ret;
    j->net.is_joined = 1;
    sys_close(j->net.fd);
    j->net.fd = -1;
    return 0;
}

/* Is the init still busy with its net namespace, so that lo is ours to bring up? For a mediator that would otherwise
 * wait for the init. Bringing lo up takes nearly as long as the init's exec, and happens at the same time. */
int net_leaves_lo(struct job *j)
{
    return makes_net(j->req) && has_init(j) && !has_no_command(j->req) && takes_lo(j);
}

int net_finish(struct job *j, int32_t *op)
{
    int ret = net_join(j, &j->b.step, op);
    return ret < 0 ? ret : set_lo(j, &j->b.step, op);
}
