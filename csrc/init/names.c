/* names.c: the root of a session, and changes of names in its own file systems, for the caller's file tools.
 *
 * The caller opens directories itself, beneath the root that it gets from here. But what it makes in them must be the
 * commands' own, and the caller's ids may not exist in a file system of this user namespace (EOVERFLOW). We have the
 * commands' ids, and do what any command may, and no more: the kernel checks our permissions.
 */
#include "session.h"

/* Returns a name's length, or 0 if it isn't one: names lead nowhere else. */
static size_t length(const char *name, size_t room)
{
    size_t n = 0;
    while (n < room && name[n] && name[n] != '/')
        n++;
    int is_dots = name[0] == '.' && (n == 1 || (n == 2 && name[1] == '.'));
    return n < room && !name[n] && !is_dots ? n : 0;
}

/* Returns a descriptor of a new file, 0 for what has none, or -errno. */
static int make(const nsbox_asking *asking, const char *names, const int *dirs, int n)
{
    size_t first = length(names, NAMES);
    const char *second = names + first + 1;
    unsigned mode = (unsigned)asking->mark & 0777;
    if (n < 1 || !first)
        return -EINVAL;
    if (asking->signal == NSBOX_MAKE_FILE)
        return sys_openat(dirs[0], names, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | SYS_O_CLOEXEC, mode);
    if (asking->signal == NSBOX_MAKE_DIRECTORY)
        return sys_mkdirat(dirs[0], names, mode);
    if (asking->signal == NSBOX_MAKE_MOVED && n > 1 && length(second, NAMES - first - 1))
        return sys_renameat2(dirs[0], names, dirs[1], second, (unsigned)asking->mark & 1 /* RENAME_NOREPLACE */);
    if (asking->signal == NSBOX_MAKE_REMOVED)
        return sys_unlinkat(dirs[0], names, (int)asking->mark & 0x200 /* AT_REMOVEDIR */);
    return -EINVAL;
}

/* dirs: descriptors of directories. Returns a descriptor for the answer, or -1. */
int names_serve(const struct request *request, const int *dirs, int n, nsbox_told_entry *report)
{
    int ret = request->asking.what == NSBOX_ASKED_ROOT
                  ? sys_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY | SYS_O_CLOEXEC, 0)
                  : make(&request->asking, request->names, dirs, n);
    report->what = NSBOX_ENTRY_MADE;
    report->error = ret < 0 ? -ret : 0;
    return ret > 0 ? ret : -1; /* 0 and 1 are always open here */
}
