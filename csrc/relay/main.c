/* main.c: the relay: nsbox-net, started with nothing but its descriptors.
 *
 * 0: /dev/null. 3: a socket to the caller. 4: the list. 5: the caller, as a pidfd. It ends when the caller has, and all
 * sandboxes that it serves have.
 */
#include "confine.h"
#include "control.h"
#include "relay.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONTROL = 3, LIST = 4, CALLER = 5 };

static int fail(const char *step, int error)
{
    tell_ready(-1, 0, error, step);
    return 1;
}

static int read_list(void)
{
    struct stat found;
    if (fstat(LIST, &found) < 0)
        return -errno;
    if (found.st_size <= 0 || found.st_size > NSBOX_NET_MOST)
        return -EINVAL;
    size_t size = (size_t)found.st_size, at = 0;
    uint8_t *blob = malloc(size);
    while (blob && at < size) {
        ssize_t n = pread(LIST, blob + at, size - at, (off_t)at);
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += (size_t)n;
    }
    close(LIST);
    return blob ? rules_read(&list, blob, size) : -ENOMEM;
}

/* A connection has two descriptors or so: as many as the user may have. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static int tick(void)
{
    if (control_is_over() && !sandboxes_left())
        exit(0);
    return sandboxes_tick();
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    raise_descriptors();
    int ret = control_start(CONTROL, CALLER);
    if (ret)
        return fail("control", ret);
    if ((ret = read_list()) < 0)
        return fail("list", ret);
    if ((ret = resolve_start()) < 0)
        return fail("resolver", ret);
    if ((ret = confine()) < 0)
        return fail("confinement", ret);
    tell_ready(-1, 0, 0, "");
    loop_run(tick);
}
