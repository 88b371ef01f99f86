/* init.c: pid 1 of each sandbox; a static program without a C library, with nothing in its memory.
 *
 * Descriptor 0 is a pidfd of the process that asked for the sandbox, descriptor 1 the read end of a
 * pipe that ends when the set-up is over, descriptor 2 an eventfd for what it has to say. It has no other descriptor, no environment, no capability
 * and isn't dumpable: what the command can reach of it is a pid. It lives as long as the command
 * (pid 2) and the caller both do. When it exits the kernel kills every process of the namespace
 * (pid_namespaces(7)), which is how a sandbox ends.
 */
#include "../linux/sys.h"

/* The kernel made this image non-dumpable at exec (its file can't be read, only executed); said once
 * more here for kernels where an LSM decides otherwise. */
static void hide(void)
{
    sys_prctl(PR_SET_DUMPABLE, 0, 0);
    sys_prctl(PR_SET_NAME, (unsigned long)"nsbox-init", 0);
}

/* Orphans of the sandbox become our children: with SIGCHLD ignored the kernel reaps them by itself. */
static void reap_orphans(void)
{
    struct sys_sigaction ignore = {.handler = SIG_IGN};
    sys_sigaction(SIGCHLD, &ignore, 0);
}

/* Wait for the end of the pipe: the mediator has gone, so pid 2 exists or never will. */
static void await_setup(void)
{
    char byte;
    while (sys_read(1, &byte, 1) == -EINTR)
        continue;
    sys_close(1);
}

static long say(void)
{
    static const uint64_t one = 1;
    return sys_write(2, &one, sizeof one);
}

/* The command has ended, so whatever is left of the sandbox descends from us. Nothing there: the caller needn't wait for
 * our own end, most of which is the kernel's unmounting. Without this word it is what the caller waits for. */
static void say_if_empty(void)
{
    if (sys_wait4(-1, WNOHANG | __WALL) != -ECHILD)
        return;
    say();
    sys_sched_yield(); /* the caller first */
}

_Noreturn __attribute__((used)) void nsbox_init_main(void)
{
    hide();
    reap_orphans();
    if (say() < 0) /* that we are up */
        sys_exit(1);
    await_setup();
    /* Pid 2 is never given away twice: after a wrap-around numbers begin at 300 (RESERVED_PIDS). */
    int command = sys_pidfd_open(2);
    if (command < 0)
        sys_exit(1);
    for (;;) {
        struct pollfd watched[2] = {{.fd = 0, .events = POLLIN}, {.fd = command, .events = POLLIN}};
        int n = sys_ppoll(watched, 2, 0);
        if (n > 0 && watched[1].revents)
            say_if_empty();
        if (n > 0 || (n < 0 && n != -EINTR))
            sys_exit(0);
    }
}

ARCH_START(nsbox_init_main);
