/* command.c: the command: its program, arguments, environment, directory and descriptors. */
#include "program.h"

enum { MAX_NAME = 255 }; /* no directory has a longer one, limits.h(0p) */

/* Returns a variable's value; NULL without it. */
static const char *value_of(const struct program *p, const char *name)
{
    for (uint64_t i = 0; i < p->line.n_env; i++) {
        const char *rest = text_after(p->line.env[i], name);
        if (rest && *rest == '=')
            return rest + 1;
    }
    return NULL;
}

/* Returns the current directory, by the name in PWD if that is right (get_current_dir_name(3)); "" if it is gone. */
static const char *current_directory(struct program *p)
{
    struct sys_statx one, other;
    const char *name = value_of(p, "PWD");
    if (name && *name == '/' && sys_statx(AT_FDCWD, name, 0, STATX_INO, &one) >= 0 &&
        sys_statx(AT_FDCWD, ".", 0, STATX_INO, &other) >= 0 && one.stx_ino == other.stx_ino &&
        one.stx_dev_major == other.stx_dev_major && one.stx_dev_minor == other.stx_dev_minor)
        return name;
    char *found = program_take(p, NSBOX_PATH_MAX + 1);
    if (!found)
        return NULL;
    /* The kernel says "(unreachable)..." for a directory that isn't below the root. */
    return sys_getcwd(found, NSBOX_PATH_MAX) < 0 || *found != '/' ? "" : found;
}

/* Returns the environment of a command that starts in this directory. */
static const char *const *environment(struct program *p, const char *directory)
{
    uint64_t n = p->line.n_env;
    const char **env = program_take(p, (n + 2) * sizeof *env), **end = env;
    const char *pwd = JOIN(p, "PWD=", directory);
    bool has = false;
    if (!env || !pwd)
        return NULL;
    for (uint64_t i = 0; i < n; i++) {
        bool is_pwd = text_after(p->line.env[i], "PWD=");
        if (!is_pwd || !has)
            *end++ = is_pwd ? pwd : p->line.env[i];
        has = has || is_pwd;
    }
    if (!has)
        *end++ = pwd;
    return env;
}

/* Without --chdir: the old directory, else HOME, else the root. */
static bool places(struct program *p)
{
    const char *names[] = {current_directory(p), value_of(p, "HOME"), "/"};
    nsbox_place *all = program_take(p, sizeof names / sizeof names[0] * sizeof *all);
    uint32_t n = 0;
    if (!all || !names[0])
        return false;
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        bool is_new = names[i] && *names[i];
        for (uint32_t k = 0; k < n && is_new; k++)
            is_new = !text_is(all[k].cwd, names[i]);
        if (!is_new)
            continue;
        all[n].cwd = names[i];
        if (!(all[n++].envp = environment(p, names[i])))
            return false;
    }
    p->request.places = all;
    p->request.n_places = n;
    p->request.envp = all[0].envp;
    return true;
}

/* The paths to try, as execvp(3) would. */
static bool programs(struct program *p, const char *name)
{
    const char *path = value_of(p, "PATH");
    uint64_t n = 1;
    bool is_path = !*name || text_length(name) > MAX_NAME;
    path = path ? path : "/bin:/usr/bin"; /* confstr(3) */
    for (const char *ch = name; *ch; ch++)
        is_path = is_path || *ch == '/';
    for (const char *ch = path; *ch; ch++)
        n += *ch == ':';
    const char **all = program_take(p, (n + 1) * sizeof *all), **end = all;
    char *copy = JOIN(p, path);
    if (!all || !copy)
        return false;
    p->request.programs = all;
    if (is_path) {
        *all = name;
        return true;
    }
    for (bool goes_on = true; goes_on;) {
        char *directory = copy;
        while (*copy && *copy != ':')
            copy++;
        goes_on = *copy == ':';
        *copy++ = 0;
        if (!(*end++ = JOIN(p, *directory ? directory : ".", "/", name)))
            return false;
    }
    return true;
}

/* One place before argv there is the name of a shell, for a script without a first line that names one. */
static bool arguments(struct program *p)
{
    uint64_t n = p->line.n_command;
    const char **argv = program_take(p, (n + 2) * sizeof *argv);
    if (!argv)
        return false;
    argv[0] = "sh";
    for (uint64_t i = 0; i < n; i++)
        argv[i + 1] = p->line.command[i];
    if (p->line.text[NSBOX_BWRAP_ARGV0])
        argv[1] = p->line.text[NSBOX_BWRAP_ARGV0];
    p->request.argv = argv + 1;
    return true;
}

/* ---- descriptors */

static bool is_named(const struct program *p, int fd)
{
    for (uint64_t i = 0; i < p->line.n_fds; i++)
        if (p->line.fds[i] == fd)
            return true;
    return false;
}

static void sort(int32_t *fds, uint64_t n)
{
    for (uint64_t i = 1; i < n; i++) {
        int32_t fd = fds[i];
        uint64_t at = i;
        for (; at && fds[at - 1] > fd; at--)
            fds[at] = fds[at - 1];
        fds[at] = fd;
    }
}

/* The command gets, besides its standard streams, the descriptors inherited here that no option names. Ours all close
 * at an exec. */
static bool descriptors(struct program *p)
{
    _Alignas(8) uint8_t entries[4096];
    struct list found = {0};
    int dir = sys_openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY, 0), got = dir;
    while (got >= 0 && (got = sys_getdents(dir, entries, sizeof entries)) > 0)
        for (int at = 0; at < got;) {
            const struct sys_dirent *entry = (const struct sys_dirent *)(const void *)(entries + at);
            struct number number = number_of(entry->name, 10);
            int fd = number.is_one ? (int)number.amount : -1;
            at += entry->length;
            if (fd <= 2 || is_named(p, fd) || sys_get_fd_flags(fd) != 0)
                continue;
            int32_t *item = list_add(&p->line.memory, &found, sizeof *item);
            if (!item)
                return no_memory(p);
            *item = fd;
        }
    sys_close(dir);
    if (got < 0)
        return FAIL(p, "Can't open /proc/self/fd: ", errno_text(-got));
    sort(found.items, found.n);
    p->request.pass_fds = found.items;
    p->request.n_pass_fds = (uint32_t)found.n;
    return true;
}

bool request_command(struct program *p)
{
    const char *chdir = p->line.text[NSBOX_BWRAP_CHDIR];
    if (!programs(p, p->line.command[0]) || !arguments(p) || !descriptors(p))
        return false;
    if (!chdir)
        return places(p);
    p->request.cwd = chdir;
    p->request.envp = environment(p, chdir);
    return p->request.envp;
}
