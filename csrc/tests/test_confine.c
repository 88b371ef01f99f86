/* test_confine.c: what the relay denies itself, each in a process of its own: files by Landlock, calls by seccomp. */
#include "check.h"
#include "relay/kernel/confine.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int reads(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* 0, or the errno. */
static int writes(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd < 0 ? errno : 0;
}

static int executes(const char *path)
{
    char *const words[] = {(char *)"true", NULL};
    int pid = fork(), status = 0;
    if (pid == 0) {
        execv(path, words);
        _exit(errno);
    }
    waitpid(pid, &status, 0);
    return WEXITSTATUS(status);
}

static int connects(void)
{
    const struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0x7f000001)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int is_allowed = connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 || errno == ECONNREFUSED;
    close(fd);
    return is_allowed;
}

static char path[] = "/tmp/nsbox-confine-XXXXXX";

static void files(void)
{
    int has_landlock = syscall(444, NULL, 0, 1) > 0;
    CHECK(!writes(path) && !executes("/bin/true"));
    CHECK(!confine_files());
    CHECK(reads("/etc/passwd") && reads("/proc/self/status") && reads("/etc") && connects());
    CHECK(writes(path) == (has_landlock ? EACCES : 0));
    CHECK(executes("/bin/true") == (has_landlock ? EACCES : 0));
    CHECK((mkdir("/tmp/nsbox-confine-d", 0700) < 0) == has_landlock);
    rmdir("/tmp/nsbox-confine-d"); /* where it could be made */
    _exit(failures != 0);
}

static void calls(void)
{
    CHECK(!confine_calls());
    CHECK(reads("/etc/passwd") && connects() && writes("/dev/null") == EACCES);
    CHECK(syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR) < 0 && errno == EACCES);
    CHECK(syscall(SYS_mkdirat, AT_FDCWD, "/tmp/nsbox-confine-d", 0700) < 0 && errno == EPERM);
    CHECK(syscall(SYS_ptrace, 0, 0, 0, 0) < 0 && errno == EPERM);
    CHECK(syscall(SYS_kill, getpid(), 0) < 0 && errno == EPERM);
    CHECK(socket(AF_PACKET, SOCK_RAW, 0) < 0 && errno == EAFNOSUPPORT);
    _exit(failures != 0);
}

static void in_a_child(void (*test)(void))
{
    int status = 0, pid = fork();
    if (pid == 0)
        test();
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    in_a_child(files);
    unlink(path);
    close(fd);
    in_a_child(calls);
    fprintf(stderr, "%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
