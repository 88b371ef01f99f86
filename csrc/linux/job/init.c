/* init.c: the last steps of a process that becomes pid 1 of a sandbox, or of a branch. */
#include "job.h"

enum { IMAGE_FD = 3 };

/* Places the init's descriptors, 0 to 2, and its image as 3, in a table of its own. */
static int take_fds(int own[], int n)
{
    int ret = 0;
    for (int i = 0; i < n; i++) /* out of the way */
        if ((own[i] = sys_dupfd_cloexec(own[i], 10)) < 0)
            return own[i];
    for (int i = 0; i < n && ret >= 0; i++)
        ret = sys_dup3(own[i], i, i == IMAGE_FD ? SYS_O_CLOEXEC : 0);
    return ret < 0 ? ret : sys_close_range((unsigned)n, ~0U);
}

/* Drops all capabilities; executing as uid 0 then gives none either (SECBIT_NOROOT). */
static int drop_privileges(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    int ret = sys_prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED, 0);
    if (ret >= 0)
        ret = sys_capset(&head, none);
    if (ret >= 0)
        ret = sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0);
    return ret;
}

int execute_init(int lifeline, int setup, int says, int image)
{
    static const char *const argv[] = {"nsbox-init", 0};
    static const char *const envp[] = {0};
    int own[] = {lifeline, setup, says, image};
    int ret = sys_setsid();
    if (ret >= 0)
        ret = take_fds(own, sizeof own / sizeof own[0]);
    if (ret >= 0)
        ret = drop_privileges();
    if (ret >= 0)
        ret = sys_execveat(IMAGE_FD, "", argv, envp, AT_EMPTY_PATH);
    return ret;
}
