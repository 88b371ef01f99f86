/* probe.c: tells what a process in a sandbox sees, and what it may do there.
 *
 *     probe HOST_PROC_FD DEVICES ROOT...
 *
 * First looks at everything below the ROOTs, then tries to create a file "+w" in each directory and to append "!" to
 * each file. Output: triples of NUL-terminated fields: kind, path, value. Statically linked, so that a sandbox needs
 * to contain nothing else. DEVICES (",8:1,0:5,") are file systems of the host that are neither entered nor written to.
 * HOST_PROC_FD is the host's /proc: mountinfo can be read through it whether or not the sandbox has a /proc.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define CHECK(x)                                                                                                       \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            perror(#x);                                                                                                \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)

static char **dirs, **files;
static size_t n_dirs, n_files;
static const char *devices;

static void say(const char *kind, const char *path, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs(kind, stdout), putchar(0);
    fputs(path, stdout), putchar(0);
    vprintf(format, args), putchar(0);
    va_end(args);
}

static void keep(char ***list, size_t *n, const char *path)
{
    CHECK(*list = realloc(*list, (*n + 1) * sizeof **list));
    CHECK((*list)[(*n)++] = strdup(path));
}

static int is_foreign(const struct stat *st)
{
    char name[64];
    int length = snprintf(name, sizeof name, ",%u:%u,", major(st->st_dev), minor(st->st_dev));
    return memmem(devices, strlen(devices), name, (size_t)length) != NULL;
}

/* A file system whose contents are the kernel's, and change. */
static int is_kernels(long type)
{
    static const long types[] = {0x9fa0, 0x62656572, 0x27e0eb, 0x63677270, 0x1cd1, 0x19800202, 0x64626720, 0x73636673};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i] == type)
            return 1;
    return 0;
}

static const char *type_of(const struct stat *st)
{
    switch (st->st_mode & S_IFMT) {
    case S_IFDIR: return "dir";
    case S_IFREG: return "file";
    case S_IFLNK: return "link";
    case S_IFIFO: return "fifo";
    case S_IFSOCK: return "socket";
    default: return "device";
    }
}

static void look_file(const char *path, const struct stat *st)
{
    char text[65] = "";
    if (S_ISSOCK(st->st_mode))
        return;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        say("read", path, "error %d", errno);
        return;
    }
    if (S_ISREG(st->st_mode))
        CHECK(read(fd, text, sizeof text - 1) >= 0);
    say("read", path, "%s", text);
    close(fd);
    if (S_ISREG(st->st_mode))
        keep(&files, &n_files, path);
}

static void look(const char *path);

static void look_dir(const char *path, const struct stat *st)
{
    struct statfs fs;
    CHECK(statfs(path, &fs) == 0);
    if (fs.f_type == 0x01021994 && !is_foreign(st))
        say("tmpfs", path, "%llu bytes", (unsigned long long)fs.f_blocks * (unsigned long long)fs.f_bsize);
    if (is_foreign(st) || is_kernels(fs.f_type))
        return;
    keep(&dirs, &n_dirs, path);
    struct dirent **names;
    int n = scandir(path, &names, NULL, alphasort);
    if (n < 0)
        say("list", path, "error %d", errno);
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i]->d_name, ".") && strcmp(names[i]->d_name, "..")) {
            char *child;
            CHECK(asprintf(&child, "%s/%s", strcmp(path, "/") ? path : "", names[i]->d_name) > 0);
            look(child);
            free(child);
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
}

static void look(const char *path)
{
    struct stat st;
    if (lstat(path, &st) < 0) {
        say("stat", path, "error %d", errno);
        return;
    }
    say("stat", path, "%s %04o uid %u gid %u", type_of(&st), st.st_mode & 07777, st.st_uid, st.st_gid);
    if (S_ISLNK(st.st_mode)) {
        char target[4096] = "";
        CHECK(readlink(path, target, sizeof target - 1) >= 0);
        say("link", path, "%s", target);
    } else if (S_ISDIR(st.st_mode)) {
        look_dir(path, &st);
    } else {
        look_file(path, &st);
    }
}

static void try_create(const char *dir)
{
    char *path;
    CHECK(asprintf(&path, "%s/+w", strcmp(dir, "/") ? dir : "") > 0);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    say("create", dir, "error %d", fd < 0 ? errno : 0);
    if (fd >= 0) {
        if (write(fd, dir, strlen(dir)) < 0)
            say("fill", dir, "error %d", errno);
        close(fd);
    }
    free(path);
}

static void try_append(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_NONBLOCK);
    say("append", path, "error %d", fd >= 0 && write(fd, "!", 1) == 1 ? 0 : errno);
    if (fd >= 0)
        close(fd);
}

static void look_mounts(int proc)
{
    int fd = openat(proc, "self/mountinfo", O_RDONLY);
    FILE *in = fd < 0 ? NULL : fdopen(fd, "r");
    CHECK(in);
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, in) > 0)
        say("mount", "", "%s", line);
    free(line);
    fclose(in);
}

static void look_process(void)
{
    char name[65] = "";
    CHECK(gethostname(name, sizeof name - 1) == 0);
    say("process", "hostname", "%s", name);
    say("process", "ids", "%u %u", getuid(), getgid());
    say("process", "groups", "%d", getgroups(0, NULL));
    say("process", "pid", "%d", getpid());
    say("process", "no_new_privs", "%d", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    int held = 0;
    for (int cap = 0; cap < 64; cap++)
        held += prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1;
    say("process", "bounding set", "%d", held);
    struct ifreq lo = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &lo) == 0);
    say("process", "loopback", "%s", lo.ifr_flags & IFF_UP ? "up" : "down");
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    devices = argv[2];
    umask(0);
    look_process();
    look_mounts(atoi(argv[1]));
    for (int i = 3; i < argc; i++)
        look(argv[i]);
    for (size_t i = 0; i < n_dirs; i++)
        try_create(dirs[i]);
    for (size_t i = 0; i < n_files; i++)
        try_append(files[i]);
    return 0;
}
