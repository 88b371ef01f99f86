/* hold.c: the set-up stops, shows what is there to the process that holds the request, and waits for its word. */
#include "job.h"

/* Sends the command's root and namespaces. The holder may not open them itself as long as the command shares memory
 * that isn't dumpable; each process may open its own. */
static int show(struct job *j)
{
    static const char *const names[NSBOX_SHOWN] = {
        0, "self/ns/cgroup", "self/ns/ipc", "self/ns/mnt", "self/ns/net", "self/ns/pid", "self/ns/uts"};
    int fds[NSBOX_SHOWN], ret = 0;
    unsigned n = 0;
    for (; n < NSBOX_SHOWN && ret >= 0; n++)
        ret = fds[n] = names[n] ? sys_openat(j->b.proc, names[n], O_RDONLY, 0)
                                : sys_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY, 0);
    if (ret >= 0)
        ret = send_fds(j->req->report_fd, fds, n);
    for (unsigned i = 0; i < n; i++)
        sys_close(fds[i]);
    return ret;
}

/* Tells the holder of the request that the set-up has come this far, and waits for its word as long as the holder
 * and the caller are there. The death signal is set again: a change of ids, or of the user namespace, has cleared it
 * (commit_creds). */
int hold(struct job *j, int is_command, uint32_t *step)
{
    char byte = 0;
    if (j->req->hold_fd < 0)
        return 0;
    *step = NSBOX_STEP_HOLD;
    long n = sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    if (n >= 0)
        n = is_command ? show(j) : sys_write(j->req->report_fd, &byte, 1);
    struct pollfd fds[2] = {{.fd = j->req->hold_fd, .events = POLLIN}, {.fd = j->lifeline, .events = POLLIN}};
    while (n >= 0 && !fds[0].revents && !fds[1].revents)
        if ((n = sys_ppoll(fds, 2, 0)) == -EINTR)
            n = 0;
    if (n >= 0)
        n = fds[1].revents ? -ESRCH : sys_read(j->req->hold_fd, &byte, 1);
    return n < 0 ? (int)n : n == 0 ? -EPIPE : 0;
}
