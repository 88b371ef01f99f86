/* main.c: the relay: nsbox-net, started with nothing but its descriptors.
 *
 * 0: /dev/null. 3: a socket to the caller. 4: the list. 5: the caller, as a pidfd. It ends when the caller and
 * all sandboxes that it serves have ended.
 */
#include "control.h"
#include "relay/base/events.h"
#include "relay/base/relay.h"
#include "relay/kernel/confine.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CONTROL = 3, LIST = 4, CALLER = 5 };

static int fail(const char *step, int error)
{
    tell_ready(-1, 0, error, step);
    return 1;
}

/* Allow as many descriptors as the user may have: each connection has about two. */
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
    int is_waiting = control_tick(), later = sandboxes_tick();
    return is_waiting ? 0 : later;
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    raise_descriptors();
    int ret = control_start(CONTROL, CALLER);
    if (ret)
        return fail("control", ret);
    if ((ret = list_read(LIST)) < 0)
        return fail("list", ret);
    if ((ret = confine_capabilities()) < 0)
        return fail("capabilities", ret);
    if ((ret = resolve_start()) < 0)
        return fail("resolver", ret);
    if ((ret = confine_files()) < 0)
        return fail("Landlock", ret);
    if ((ret = confine_calls()) < 0)
        return fail("seccomp", ret);
    tell_ready(-1, 0, 0, "");
    loop_run(tick);
}
