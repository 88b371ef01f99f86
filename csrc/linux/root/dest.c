/* dest.c: where in the sandbox? Destinations resolve here and nowhere else.
 *
 * A plan binds directories that untrusted commands have written to, so any component of a destination may be a
 * planted symlink. Paths resolve inside the new root (resolve.c), and things are created only in file systems made
 * for this sandbox. In CVE-2026-87766, mkdir and open followed a link out of bubblewrap's half-built root, onto the
 * host. (With NSBOX_HOST_WRITES, for bubblewrap's own command line, things are also created in what is bound
 * writable; still never outside of what the new root shows.)
 */
#include "ops.h"
#include "kernel/resolve.h"

int file_kind(int fd, unsigned *mode, uint64_t *dev)
{
    struct sys_statx st;
    int ret = sys_statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_MODE, &st);
    if (ret < 0)
        return ret;
    if (mode)
        *mode = st.stx_mode;
    if (dev)
        *dev = (uint64_t)st.stx_dev_major << 32 | st.stx_dev_minor;
    return 0;
}

int own_add(struct builder *b, int fd)
{
    uint64_t dev;
    int ret = file_kind(fd, 0, &dev);
    if (ret < 0)
        return ret;
    if (b->n_own >= b->max_own)
        return -ENOSPC;
    b->own[b->n_own++] = dev;
    return 0;
}

/* Was its file system made for this sandbox? 1, 0, or -errno. */
static int is_own(const struct builder *b, int fd)
{
    uint64_t dev;
    int ret = file_kind(fd, 0, &dev);
    if (ret < 0)
        return ret;
    for (uint32_t i = b->n_own; i > 0; i--)
        if (b->own[i - 1] == dev)
            return 1;
    return 0;
}

int own_check(struct builder *b, int fd)
{
    if (b->host_writes || fd == b->parent)
        return 0; /* the parent was checked when it was kept */
    int ret = is_own(b, fd);
    if (ret != 0)
        return ret < 0 ? ret : 0;
    /* In a copy of a kept tree all is made in file systems of our own, unless a directory was replaced meanwhile. */
    b->step = b->kept_stamps ? NSBOX_STEP_STALE : NSBOX_STEP_HOST;
    return b->kept_stamps ? -ESTALE : -EROFS;
}

/* Returns the descriptor that a path of the sandbox resolves in, and cuts off what leads to that: the root, or what a
 * copy has mounted on the way last. A path that leads there may lead elsewhere by now. */
int dest_root(const struct builder *b, const char **path)
{
    int root = b->root;
    size_t most = 0;
    for (uint32_t i = 0; i < b->n_anchors; i++) {
        size_t n = length_above(*path, b->anchors[i].path);
        if (n && n >= most) {
            most = n;
            root = b->anchors[i].root;
        }
    }
    *path += most;
    if (!**path)
        *path = "/";
    return root;
}

static int find(struct builder *b, const char *path, int nofollow)
{
    b->step = NSBOX_STEP_DEST;
    int root = dest_root(b, &path);
    return open_inside(root, path, nofollow);
}

int dest_find(struct builder *b, const char *path)
{
    return find(b, path, 0);
}

int dest_find_plain(struct builder *b, const char *path)
{
    return find(b, path, 1);
}

/* Returns the length of path without its last component and the slashes before it; 0 stands for the root. */
static size_t parent_length(const char *path, size_t len)
{
    while (len > 0 && path[len - 1] == '/')
        len--;
    while (len > 0 && path[len - 1] != '/')
        len--;
    while (len > 0 && path[len - 1] == '/')
        len--;
    return len;
}

/* Creates a directory, or an empty file to mount something on, which nobody without capabilities can write to. */
static int create(struct builder *b, int dir, const char *name, enum dest_kind kind, unsigned mode)
{
    TRY(b, NSBOX_STEP_CREATE, own_check(b, dir));
    return kind == DEST_FILE ? sys_mknodat(dir, name, SYS_S_IFREG | 0444) : sys_mkdirat(dir, name, mode);
}

/* Makes one directory below *dir, and swaps *dir for it. EEXIST means that there is a dangling link or a racing
 * process: an error, never followed. */
static int make_step(struct builder *b, int *dir, const char *name, unsigned mode)
{
    int ret = create(b, *dir, name, DEST_DIR, mode);
    int fd = ret < 0 ? ret : sys_openat(*dir, name, O_PATH | O_NOFOLLOW | O_DIRECTORY, 0);
    if (fd < 0)
        return fd;
    sys_close(*dir);
    *dir = fd;
    return 0;
}

/* Opens the longest prefix of path that exists, of at most *have bytes, and cuts path there by a NUL. */
static int open_prefix(struct builder *b, char *path, size_t *have)
{
    for (;;) {
        path[*have] = 0;
        int dir = dest_find(b, *have ? path : "/");
        if (dir != -ENOENT || *have == 0)
            return dir;
        *have = parent_length(path, *have);
    }
}

/* Reports which directory on the way to a destination can't be made. */
static void tell(struct builder *b, const char *path)
{
    unsigned i = 0;
    for (; path[i] && i < sizeof((nsbox_result *)0)->detail - 1; i++)
        b->detail[i] = path[i];
    b->detail[i] = 0;
}

/* Opens the directory at path, making what is missing. path is work space; beyond its first `have` bytes nothing
 * exists. */
static int open_dirs(struct builder *b, char *path, size_t len, size_t have, unsigned mode)
{
    int dir = open_prefix(b, path, &have);
    if (dir < 0)
        return dir;
    /* Each cut replaced one slash. Go forward again, one new directory at a time. */
    while (have < len) {
        path[have] = '/';
        char *name = path + have;
        while (*name == '/')
            name++;
        have = (size_t)(name - path);
        while (path[have])
            have++;
        int ret = make_step(b, &dir, name, have == len ? mode : b->parent_mode);
        if (ret < 0) {
            tell(b, path);
            sys_close(dir);
            return ret;
        }
    }
    return dir;
}

static int copy_path(char *buf, const char *path, size_t *len)
{
    size_t n = 0;
    while (path[n]) {
        if (n + 1 >= NSBOX_PATH_MAX)
            return -ENAMETOOLONG;
        buf[n] = path[n];
        n++;
    }
    buf[n] = 0;
    *len = n;
    return 0;
}

/* Returns the path's last component; *parent is the length of what is before it. */
static const char *split(const char *path, size_t *parent)
{
    size_t len = 0;
    while (path[len])
        len++;
    *parent = parent_length(path, len);
    const char *name = path + *parent;
    while (*name == '/')
        name++;
    return name;
}

static int is_kept(const struct builder *b, const char *path, size_t len)
{
    if (b->parent < 0 || b->parent_root != b->root || b->parent_len != len)
        return 0;
    for (size_t i = 0; i < len; i++)
        if (b->parent_path[i] != path[i])
            return 0;
    return 1;
}

/* Keeps a directory for the next op, if it is in one of our own file systems: no other process can change what its
 * path means. We can, by a mount on an existing place: then attach() forgets it. */
static void keep_parent(struct builder *b, int dir, const char *path, size_t len)
{
    if (is_own(b, dir) > 0) {
        forget_parent(b);
        b->parent = dir;
        b->parent_root = b->root;
        b->parent_path = path;
        b->parent_len = len;
    }
}

void forget_parent(struct builder *b)
{
    if (b->parent >= 0)
        sys_close(b->parent);
    b->parent = -1;
}

void release_parent(struct builder *b, int dir)
{
    if (dir >= 0 && dir != b->parent)
        sys_close(dir);
}

/* Returns a directory to create something in; give it back by release_parent(). */
int dest_parent(struct builder *b, const char *path, const char **name)
{
    char buf[NSBOX_PATH_MAX];
    size_t len, cut;
    *name = split(path, &cut);
    if (!**name)
        TRY(b, NSBOX_STEP_CREATE, -EBUSY); /* the root itself has no name */
    if (is_kept(b, path, cut))
        return b->parent;
    TRY(b, NSBOX_STEP_DEST, copy_path(buf, path, &len));
    int dir = open_dirs(b, buf, cut, cut, b->parent_mode);
    if (dir >= 0)
        keep_parent(b, dir, path, cut);
    return dir;
}

/* Finds or makes the destination. If it exists, returns its descriptor, and *name is "". If it is made, returns the
 * directory and its name there; it needn't be opened, since in a file system of ours a name stays as we made it.
 * (With NSBOX_HOST_WRITES others may swap it; a mount lies at the name all the same, and follows no link.) The
 * descriptor goes to release_parent(). */
int dest_open(struct builder *b, const char *path, enum dest_kind kind, unsigned mode, const char **name)
{
    size_t cut;
    const char *last = split(path, &cut);
    int kept = *last && is_kept(b, path, cut);
    int fd = kept ? -ENOENT : dest_find(b, path);
    *name = "";
    if (fd != -ENOENT)
        return fd;
    int dir = dest_parent(b, path, &last);
    int ret = dir < 0 ? dir : create(b, dir, last, kind, mode);
    if (ret >= 0) {
        *name = last;
        return dir;
    }
    release_parent(b, dir);
    if (ret != -EEXIST || !kept)
        return ret;
    fd = dest_find(b, path); /* a dangling link is neither followed nor replaced */
    return fd == -ENOENT ? -EEXIST : fd;
}
