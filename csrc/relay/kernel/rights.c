/* rights.c: limits the relay's rights: it may only read files, by landlock(7), and keeps few of root's capabilities.
 * The system calls are the core's own, as in its audit list.
 *
 * getaddrinfo(3) reads any files, and loads libraries. TCP isn't handled; nor is what a later kernel adds.
 */
#include "confine.h"
#include "linux/kernel/sys.h"

enum { VERSION = 1, PATH_BENEATH = 1, READ_FILE = 1 << 2, READ_DIRECTORY = 1 << 3 };

static const uint64_t HANDLED[] = {0, 0x1fff, 0x3fff, 0x7fff, 0x7fff, 0xffff}; /* by version */

struct __attribute__((packed)) path_beneath {
    uint64_t rights;
    int32_t fd;
};

static int restrict_to(int ruleset, int root)
{
    const struct path_beneath all = {READ_FILE | READ_DIRECTORY, root};
    int ret = sys_landlock_add_rule(ruleset, PATH_BENEATH, &all);
    if (ret == 0)
        ret = sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0);
    return ret < 0 ? ret : sys_landlock_restrict_self(ruleset);
}

int confine_files(void)
{
    const int last = sizeof HANDLED / sizeof *HANDLED - 1, version = sys_landlock_create_ruleset(NULL, 0, VERSION);
    if (version <= 0)
        return 0; /* the kernel has no Landlock, or a filter around us forbids it */
    const uint64_t handled = HANDLED[version < last ? version : last];
    int root = sys_openat(AT_FDCWD, "/", O_PATH, 0);
    if (root < 0)
        return root;
    int ret = sys_landlock_create_ruleset(&handled, sizeof handled, 0), ruleset = ret;
    if (ruleset >= 0) {
        ret = restrict_to(ruleset, root);
        sys_close(ruleset);
    }
    sys_close(root);
    return ret;
}

/* As root, the relay keeps two. With one, it enters user namespaces of other ids (setns(2)), in which it has all
 * capabilities. With the other, a listener in such a namespace can have a port below 1024. */
int confine_capabilities(void)
{
    static const uint32_t kept[] = {1u << CAP_SYS_ADMIN | 1u << CAP_NET_BIND_SERVICE, 1u << CAP_SYS_ADMIN, 0};
    int ret = -EPERM;
    for (size_t i = 0; i < sizeof kept / sizeof *kept && ret == -EPERM; i++) { /* as many of them as it has */
        struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
        const struct __user_cap_data_struct own[2] = {{.effective = kept[i], .permitted = kept[i]}};
        ret = sys_capset(&head, own);
    }
    return ret; /* the ambient ones went with the permitted ones (capabilities(7)) */
}
