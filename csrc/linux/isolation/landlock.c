/* landlock.c: a second wall behind the mounts (landlock(7)). A file that neither the plan's paths nor the command's
 * own descriptors allow is refused, whichever way leads to it. */
#include "isolation.h"
#include "kernel/resolve.h"

enum { RULE_PATH_BENEATH = 1 };
enum { EXECUTE = 1, WRITE_FILE = 2, READ_FILE = 4, TRUNCATE = 1 << 14, IOCTL_DEV = 1 << 15 };
enum {
    FOR_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
}; /* any other is EINVAL, except for directories */

/* The kernel's struct landlock_ruleset_attr and landlock_path_beneath_attr. Older kernels know fewer fields of the
 * first, and accept the others if they are 0. */
struct attributes {
    uint64_t files;
    uint64_t net;
    uint64_t scoped;
};
struct __attribute__((packed)) path_beneath {
    uint64_t rights;
    int32_t fd;
};

static int is_of_kind(int fd, unsigned kind)
{
    struct sys_statx st;
    int ret = sys_statx(fd, "", AT_EMPTY_PATH, STATX_TYPE, &st);
    return ret < 0 ? ret : (st.stx_mode & SYS_S_IFMT) == kind;
}

static int is_directory(int fd)
{
    return is_of_kind(fd, SYS_S_IFDIR);
}

/* Opens an absolute path without following links, as openat2(2) does with RESOLVE_NO_SYMLINKS. The command's filters
 * refuse that call already: its mode, which may be set-user-ID, is behind a pointer. */
static int open_without_links(const char *path)
{
    return walk_plainly(sys_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY, 0), path);
}

static int add_rule(int ruleset, int fd, uint64_t rights)
{
    struct path_beneath rule = {.rights = rights, .fd = fd};
    int ret = is_directory(fd);
    if (ret < 0)
        return ret;
    if (!ret)
        rule.rights &= FOR_FILES;
    return rule.rights ? sys_landlock_add_rule(ruleset, RULE_PATH_BENEATH, &rule) : 0;
}

/* Adds the rules for paths; *at says which one failed. Paths without NOFOLLOW are the system's, or destinations of
 * the plan: no command planted the links there. A path that the command can't reach needs no rule: without one it
 * has no rights there. */
static int add_paths(int ruleset, const nsbox_ruleset *r, int32_t *at)
{
    for (uint32_t i = 0; i < r->n_paths; i++) {
        const nsbox_path_rule *path = &r->paths[i];
        *at = (int32_t)i;
        int fd =
            path->flags & NSBOX_NOFOLLOW ? open_without_links(path->path) : sys_openat(AT_FDCWD, path->path, O_PATH, 0);
        if (fd == -EACCES || (fd == -ENOENT && path->flags & NSBOX_OPTIONAL))
            continue;
        int ret = fd < 0 ? fd : add_rule(ruleset, fd, path->rights & r->files);
        if (fd >= 0)
            sys_close(fd);
        if (ret < 0)
            return ret;
    }
    *at = -1;
    return 0;
}

/* Adds a rule for a descriptor that was passed. The command may open it again (usually as /dev/stdout), with no more
 * rights than it was passed with. What is in no file system that paths lead to, such as a pipe, isn't restricted
 * anyway: EBADFD. */
static int add_descriptor(int ruleset, int fd, uint64_t files)
{
    int mode = sys_get_status_flags(fd);
    if (mode < 0)
        return mode == -EBADF ? 0 : mode;
    if (mode & O_PATH)
        return 0;
    int writes = (mode & O_ACCMODE) != O_RDONLY, reads = (mode & O_ACCMODE) != O_WRONLY;
    uint64_t rights = IOCTL_DEV | (reads ? EXECUTE | READ_FILE : 0U);
    rights |= writes ? WRITE_FILE | (mode & O_APPEND ? 0U : TRUNCATE) : 0U;
    int ret = is_directory(fd);
    if (ret >= 0)
        ret = add_rule(ruleset, fd, files & (ret ? ~0ULL : rights));
    return ret == -EBADFD ? 0 : ret;
}

static int add_descriptors(int ruleset, const nsbox_request *r)
{
    int ret = 0;
    for (int fd = 0; fd < 3 && ret >= 0; fd++)
        ret = add_descriptor(ruleset, fd, r->ruleset->files);
    for (uint32_t i = 0; i < r->n_pass_fds && ret >= 0; i++)
        ret = add_descriptor(ruleset, r->pass_fds[i], r->ruleset->files);
    return ret;
}

int landlock_confine(const nsbox_request *r, uint32_t *step, int32_t *at)
{
    *step = NSBOX_STEP_LANDLOCK;
    const nsbox_ruleset *wish = r->ruleset;
    if (!wish)
        return 0;
    struct attributes attributes = {.files = wish->files, .net = wish->net, .scoped = wish->scoped};
    int ruleset = sys_landlock_create_ruleset(&attributes, sizeof attributes, 0);
    int ret = ruleset;
    if (ret >= 0 && wish->files)
        ret = add_paths(ruleset, wish, at);
    if (ret >= 0 && wish->files)
        ret = add_descriptors(ruleset, r);
    if (ret >= 0)
        ret = sys_landlock_restrict_self(ruleset);
    if (ruleset >= 0)
        sys_close(ruleset);
    return ret;
}
