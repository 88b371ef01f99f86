/* sources.c: what a command line shows of the host. */
#include "program.h"

static bool is_same(const struct sys_statx *one, const struct sys_statx *other)
{
    return one->stx_ino == other->stx_ino && one->stx_dev_major == other->stx_dev_major &&
           one->stx_dev_minor == other->stx_dev_minor;
}

/* Returns the name that an open file has now: a path without links that leads to it; or NULL with *error. */
static const char *name_of(struct program *p, int fd, int *error)
{
    struct sys_statx file, named;
    struct digits d;
    char *name = program_take(p, NSBOX_PATH_MAX + 1);
    const char *link = JOIN(p, "/proc/self/fd/", digits_of(&d, fd));
    if (!name || !link)
        return NULL;
    long n = sys_readlinkat(AT_FDCWD, link, name, NSBOX_PATH_MAX);
    *error = n < 0 ? (int)-n : ENOENT; /* it has no name, or lost it */
    if (n <= 0 || *name != '/')
        return NULL;
    name[n] = 0;
    if (sys_statx(fd, "", SYS_AT_EMPTY_PATH, STATX_INO, &file) < 0 ||
        sys_statx(AT_FDCWD, name, AT_SYMLINK_NOFOLLOW, STATX_INO, &named) < 0)
        return NULL;
    return is_same(&file, &named) ? name : NULL;
}

/* Opening this path makes the kernel mount what is mounted on demand. */
static int mount_on_demand(struct program *p, const char *path)
{
    const char *inside = JOIN(p, path, "/.");
    int ret = inside ? sys_openat(AT_FDCWD, inside, O_PATH, 0) : -ENOMEM;
    if (ret >= 0)
        sys_close(ret);
    return ret;
}

const char *source_followed(struct program *p, const char *path, bool optional)
{
    struct sys_statx st;
    const char *name = NULL;
    int error = 0, fd = sys_openat(AT_FDCWD, path, O_PATH, 0), ret = fd;
    if (ret >= 0)
        ret = sys_statx(fd, "", SYS_AT_EMPTY_PATH, STATX_TYPE, &st);
    if (ret >= 0 && (st.stx_mode & SYS_S_IFMT) == SYS_S_IFDIR)
        ret = mount_on_demand(p, path);
    if (ret >= 0)
        name = name_of(p, fd, &error);
    sys_close(fd);
    if (name)
        return name;
    error = ret < 0 ? -ret : error;
    if (optional && error == ENOENT)
        return "";
    FAIL(p, "Can't find source path ", path, ": ", errno_text(error));
    return NULL;
}

const char *path_below(const char *path, const char *above)
{
    const char *rest = text_is(above, "/") ? path : text_after(path, above);
    if (!rest || (*rest && *rest != '/'))
        return NULL;
    while (*rest == '/')
        rest++;
    return rest;
}

const char *source_of_state(struct program *p)
{
    const char *base = NULL, *home = NULL;
    for (const char *const *entry = p->envp; *entry; entry++) {
        const char *value = text_after(*entry, "XDG_STATE_HOME=");
        base = value && *value == '/' ? value : base;
        value = text_after(*entry, "HOME=");
        home = value && *value == '/' ? value : home;
    }
    if (!base && !home)
        return "";
    const char *path = base ? JOIN(p, base, "/nsbox") : JOIN(p, home, "/.local/state/nsbox"), *name = "";
    int error, fd = path ? sys_openat(AT_FDCWD, path, O_PATH | O_DIRECTORY, 0) : -ENOMEM;
    if (fd >= 0)
        name = name_of(p, fd, &error);
    sys_close(fd);
    return !path ? NULL : name ? name : "";
}
