/* report.c: a process's report to the one that waits for it, and the exec. The command and our helper program do
 * both. */
#include "darwin/system/system.h"

#include <errno.h>
#include <unistd.h>

#include "helper.h"

/* So few bytes arrive in one piece or not at all (PIPE_BUF). */
int report_send(int fd, int error, uint32_t step)
{
    const struct report r = {error, step};
    ssize_t n;
    while ((n = write(fd, &r, sizeof r)) < 0 && errno == EINTR)
        continue;
    return n < 0 ? -errno : 0;
}

int report_receive(int fd, struct report *r)
{
    size_t done = 0;
    while (done < sizeof *r) {
        ssize_t n = read(fd, (char *)r + done, sizeof *r - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (int)done;
}

int execute(const char *const *programs, const char *const *argv, const char *const *envp)
{
    int error = 0, last = ENOENT;
    for (; *programs; programs++) {
        execve(*programs, (char *const *)(uintptr_t)argv, (char *const *)(uintptr_t)envp);
        last = errno;
        if (last != ENOENT && last != ENOTDIR && !error)
            error = last;
    }
    return -(error ? error : last);
}
