/* resolve.c: openat2(2) for a path of the sandbox or of the policy; where a filter refuses that call, the same step
 * by step.
 *
 * systemd's RestrictSUIDSGID= makes it fail with ENOSYS, older profiles of containers with EPERM. Each step opens
 * one name in a descriptor, and never a link: a link's text is split like the path, and counts from the root that
 * the walk began in. "..", which a rename could let out of that root, is never passed to the kernel. So nothing is
 * found that openat2() would have refused.
 */
#include "resolve.h"

enum { MOST_LINKS = 40 }; /* path_resolution(7) */

static int is_refused(int fd)
{
    return fd == -ENOSYS || fd == -EPERM;
}

/* Opens one name. Returns its descriptor, or -ELOOP for a link, whose text goes to `link` unless that is NULL. */
static int step_into(int at, const char *part, size_t n, char *link, long *length)
{
    char name[256]; /* NAME_MAX and the 0 */
    struct sys_statx st;
    if (n >= sizeof name)
        return -ENAMETOOLONG;
    for (size_t i = 0; i < n; i++)
        name[i] = part[i];
    name[n] = 0;
    int fd = sys_openat(at, name, O_PATH | O_NOFOLLOW, 0);
    if (fd < 0)
        return fd;
    int ret = sys_statx(fd, "", AT_EMPTY_PATH, STATX_TYPE, &st);
    if (ret >= 0 && (st.stx_mode & SYS_S_IFMT) != SYS_S_IFLNK)
        return fd;
    if (ret >= 0 && link)
        *length = sys_readlinkat(fd, "", link, NSBOX_PATH_MAX);
    sys_close(fd);
    return ret < 0 ? ret : -ELOOP;
}

static size_t name_length(const char *path)
{
    size_t n = 0;
    while (path[n] && path[n] != '/')
        n++;
    return n;
}

int walk_plainly(int at, const char *path)
{
    while (at >= 0) {
        while (*path == '/')
            path++;
        size_t n = name_length(path);
        if (!n)
            break;
        int next = step_into(at, path, n, 0, 0);
        sys_close(at);
        at = next;
        path += n;
    }
    return at;
}

int open_plainly(const char *path)
{
    int fd = sys_openat2(AT_FDCWD, path, O_PATH, 0, RESOLVE_NO_SYMLINKS);
    return is_refused(fd) ? walk_plainly(sys_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY, 0), path) : fd;
}

struct walk {
    int root;
    int fd;
    size_t have;                   /* of done */
    char done[NSBOX_PATH_MAX];     /* the names on the way from the root to fd, each preceded by a slash */
    char *rest;                    /* in room */
    char room[2 * NSBOX_PATH_MAX]; /* what is still to be walked, at its end */
    char link[NSBOX_PATH_MAX];
};

static int go_to(struct walk *w, int fd)
{
    if (w->fd >= 0)
        sys_close(w->fd);
    w->fd = fd;
    return fd;
}

/* Starts again from the root, and goes to where the names in done lead. */
static int restart(struct walk *w)
{
    w->done[w->have] = 0;
    return go_to(w, walk_plainly(sys_openat(w->root, ".", O_PATH | O_DIRECTORY, 0), w->done));
}

static int go_up(struct walk *w)
{
    while (w->have > 0 && w->done[--w->have] != '/')
        continue;
    return restart(w);
}

/* Inserts a link's text before what is still to be walked. */
static int put_before(struct walk *w, long n)
{
    if (n <= 0)
        return n < 0 ? (int)n : -ENOENT;
    if (n >= NSBOX_PATH_MAX || w->rest - w->room < n + 1)
        return -ENAMETOOLONG;
    *--w->rest = '/';
    while (n > 0)
        *--w->rest = w->link[--n];
    if (*w->rest != '/')
        return 0;
    w->have = 0;
    return restart(w);
}

static int go_down(struct walk *w, size_t n, int *links, int nofollow)
{
    long length = 0;
    int next = step_into(w->fd, w->rest, n, w->link, &length);
    if (next == -ELOOP && !nofollow && ++*links <= MOST_LINKS) {
        w->rest += n;
        return put_before(w, length);
    }
    if (next < 0)
        return next;
    if (w->have + n + 2 > sizeof w->done) {
        sys_close(next);
        return -ENAMETOOLONG;
    }
    w->done[w->have++] = '/';
    for (size_t i = 0; i < n; i++)
        w->done[w->have++] = w->rest[i];
    w->rest += n;
    return go_to(w, next);
}

static int walk_in_root(int root, const char *path, int nofollow)
{
    struct walk w;
    size_t n = 0;
    int links = 0, ret = 0;
    w.root = root;
    w.fd = -1;
    w.have = 0;
    while (path[n])
        n++;
    if (n >= NSBOX_PATH_MAX)
        return -ENAMETOOLONG;
    w.rest = w.room + sizeof w.room - n - 1;
    for (size_t i = 0; i <= n; i++)
        w.rest[i] = path[i];
    for (ret = restart(&w); ret >= 0;) {
        while (*w.rest == '/')
            w.rest++;
        n = name_length(w.rest);
        if (!n)
            return w.fd;
        int dots = w.rest[0] == '.' ? (n == 1 ? 1 : n == 2 && w.rest[1] == '.' ? 2 : 0) : 0;
        if (dots)
            w.rest += n;
        if (dots != 1)
            ret = dots ? go_up(&w) : go_down(&w, n, &links, nofollow);
    }
    if (w.fd >= 0)
        sys_close(w.fd);
    return ret;
}

int open_inside(int root, const char *path, int nofollow)
{
    uint64_t how = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | (nofollow ? RESOLVE_NO_SYMLINKS : 0);
    int fd = -EAGAIN; /* when a rename elsewhere races with a ".." in a link: try again, a few times */
    for (int i = 0; i < 32 && fd == -EAGAIN; i++)
        fd = sys_openat2(root, path, O_PATH, 0, how);
    return is_refused(fd) ? walk_in_root(root, path, nofollow) : fd;
}
