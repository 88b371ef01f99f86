/* init_start.c: from the mediator to pid 1 of the sandbox.
 *
 * The init is created first, before any mount: it alone can make a procfs of the new pid namespace
 * (procfs takes the namespace of whoever opens it), and its exec then overlaps with the mediator's
 * mounts. Until it execs it shares the mediator's memory and descriptor table.
 */
#include "child.h"

/* The image in a sealed memfd, executable but not readable, which makes the kernel run it non-dumpable from
 * its first instruction (would_dump): the command can neither ptrace it nor read its /proc entries. */
static int image_memfd(void)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = sys_memfd_create("nsbox-init", flags | MFD_EXEC);
    if (fd == -EINVAL)
        fd = sys_memfd_create("nsbox-init", flags);
    if (fd < 0)
        return fd;
    int ret = write_all(fd, nsbox_init_image, nsbox_init_image_len);
    if (ret >= 0)
        ret = sys_fchmod(fd, 0100);
    if (ret >= 0)
        ret = sys_add_seals(fd, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    if (ret >= 0)
        return fd;
    sys_close(fd);
    return ret;
}

/* Where vm.memfd_noexec forbids that: an unlinked file in a tmpfs of our own. */
static int image_file(struct builder *b)
{
    int mount = fs_make(b, "tmpfs", (const char *const[]){0}, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    if (mount < 0)
        return mount;
    int fd = sys_openat(mount, "init", O_WRONLY | O_CREAT | O_EXCL, 0100);
    int ret = fd < 0 ? fd : write_all(fd, nsbox_init_image, nsbox_init_image_len);
    if (fd >= 0)
        sys_close(fd); /* a file open for writing can't be executed (ETXTBSY) */
    if (ret >= 0)
        ret = sys_openat(mount, "init", O_PATH | O_NOFOLLOW, 0);
    sys_close(mount);
    return ret;
}

static int open_image(struct builder *b)
{
    int fd = image_memfd();
    return fd == -EACCES || fd == -EPERM ? image_file(b) : fd;
}

/* Exactly two descriptors, 0 and 1, and a table of its own. */
static int take_fds(struct job *j, int image)
{
    int lifeline = sys_dupfd_cloexec(j->lifeline, 10);
    int pipe = sys_dupfd_cloexec(j->setup_pipe[0], 10);
    int program = sys_dupfd_cloexec(image, 10);
    if (lifeline < 0 || pipe < 0 || program < 0)
        return -EMFILE;
    int ret = sys_dup3(lifeline, 0, 0);
    if (ret >= 0)
        ret = sys_dup3(pipe, 1, 0);
    if (ret >= 0)
        ret = sys_dup3(program, 2, SYS_O_CLOEXEC);
    if (ret >= 0)
        ret = sys_close_range(3, ~0U);
    return ret;
}

/* No capability now, and none gained by executing as uid 0 (SECBIT_NOROOT). */
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

static int become_init(struct job *j, int image)
{
    static const char *const argv[] = {"nsbox-init", 0};
    static const char *const envp[] = {0};
    int ret = sys_setsid();
    if (ret >= 0)
        ret = take_fds(j, image);
    if (ret >= 0)
        ret = drop_privileges();
    if (ret >= 0)
        ret = sys_execveat(2, "", argv, envp, AT_EMPTY_PATH);
    return ret;
}

static void init_main(void *arg)
{
    struct job *j = arg;
    struct builder scratch = {.step = 0};
    /* "/", so that pivot_root(2) moves our working directory along with our root. */
    int ret = sys_chdir("/");
    int image = ret < 0 ? ret : open_image(&scratch);
    const char *const no_options[] = {0};
    j->init_proc = fs_make(&scratch, "proc", no_options, MOUNT_ATTR_SAFE | MOUNT_ATTR_NOEXEC);
    __atomic_store_n(&j->init_ready, 1, __ATOMIC_RELEASE);
    sys_futex_wake(&j->init_ready);
    /* The table is the mediator's up to here; from here on it has a copy of its own. */
    ret = image < 0 ? image : sys_unshare(CLONE_FILES);
    j->init_error = ret < 0 ? ret : become_init(j, image);
    sys_exit(127);
}

/* The caller opens its own pidfd when we are gone; by the inode it can tell that it is the same process. */
static void note_inode(struct job *j, int pid)
{
    struct statx st;
    int fd = sys_pidfd_open(pid);
    if (fd < 0)
        return;
    if (sys_statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st) >= 0)
        j->res->init_ino = st.stx_ino;
    sys_close(fd);
}

int init_start(struct job *j)
{
    TRY(&j->b, NSBOX_STEP_INIT, sys_pipe2(j->setup_pipe, SYS_O_CLOEXEC));
    unsigned long flags = CLONE_VM | CLONE_FILES | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    if (j->req->flags & NSBOX_ADOPT_INIT)
        flags |= CLONE_PARENT;
    j->init_tid = 1;
    long pid = arch_clone(flags, j->init_stack, &j->res->init_pid, (int *)(void *)&j->init_tid, init_main, j);
    if (pid < 0) {
        j->init_tid = 0;
        return (int)pid;
    }
    note_inode(j, (int)pid);
    return 0;
}

/* Sleeps until *word is no longer `value`, or the init is gone. The time limit is for an init that was killed
 * before it could wake us: CLONE_CHILD_CLEARTID then clears init_tid, and only that word is woken. */
static void await_word(struct job *j, uint32_t *word, uint32_t value)
{
    static const int64_t fifty_ms[2] = {0, 50000000};
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value && __atomic_load_n(&j->init_tid, __ATOMIC_ACQUIRE))
        sys_futex_wait(word, value, fifty_ms);
}

int init_new_proc(void *arg)
{
    struct job *j = arg;
    await_word(j, &j->init_ready, 0);
    if (!__atomic_load_n(&j->init_ready, __ATOMIC_ACQUIRE))
        return -ESRCH;
    if (j->init_proc < 0)
        return j->init_proc;
    int fd = j->init_proc;
    j->init_proc = -EBUSY; /* each detached mount can be attached once; the planner allows one /proc */
    return fd;
}

/* Returns when the init runs its own image, in its own memory. */
int init_await(struct job *j)
{
    uint32_t tid;
    while ((tid = __atomic_load_n(&j->init_tid, __ATOMIC_ACQUIRE)) != 0)
        sys_futex_wait(&j->init_tid, tid, 0);
    return j->init_error;
}
