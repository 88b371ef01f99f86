/* caller.c: who calls, as /proc and the kernel say. */
#include "program.h"

enum { CAP_LAST = 40 };

int fd_contents(struct program *p, int fd, uint8_t **data, uint64_t *len)
{
    int ret = read_all(&p->line.memory, fd, data, len);
    if (!*data)
        no_memory(p);
    return ret;
}

char *file_text(struct program *p, const char *path, uint64_t *len)
{
    uint8_t *data;
    uint64_t n;
    int fd = sys_openat(AT_FDCWD, path, O_RDONLY, 0);
    if (fd < 0 || fd_contents(p, fd, &data, &n) < 0)
        return NULL;
    if (fd <= 2)
        sys_close(fd);
    if (len)
        *len = n;
    return (char *)data;
}

/* Returns what follows a name in one of the lines of a file such as /proc/self/status; "" without it. */
static const char *row(const char *text, const char *name)
{
    for (const char *at = text; at && *at;) {
        const char *found = text_after(at, name);
        if (found) {
            while (*found == ' ' || *found == '\t')
                found++;
            return found;
        }
        while (*at && *at++ != '\n')
            continue;
    }
    return "";
}

uint64_t hexadecimal_after(const char *text)
{
    uint64_t value = 0;
    while (*text == ' ' || *text == '\t')
        text++;
    for (;; text++) {
        if (*text >= '0' && *text <= '9')
            value = value * 16 + (uint64_t)(*text - '0');
        else if (*text >= 'a' && *text <= 'f')
            value = value * 16 + (uint64_t)(*text - 'a') + 10;
        else
            return value;
    }
}

/* The kernel's uid 0 owns the kernel's settings, whatever number it has in a nested user namespace; others may have
 * power over them by their mode. */
static bool is_kernel_root(uint32_t euid)
{
    static const char setting[] = "/proc/sys/kernel/core_pattern";
    struct sys_statx st;
    if (sys_may_write(setting))
        return true;
    return sys_statx(AT_FDCWD, setting, 0, STATX_UID, &st) < 0 ? euid == 0 : st.stx_uid == euid;
}

static bool has_proc(const struct program *p)
{
    for (uint64_t i = 0; i < p->line.n_ops; i++)
        if (p->line.ops[i].what == NSBOX_BWRAP_PROC)
            return true;
    return false;
}

bool caller_is_filtered(struct program *p)
{
    return *row(file_text(p, "/proc/self/status", NULL), "Seccomp:") == '2';
}

/* Most command lines of ordinary users depend on the ids alone. */
void caller_ask(struct program *p)
{
    struct caller *c = &p->caller;
    c->euid = sys_geteuid();
    c->egid = sys_getegid();
    c->is_kernel_root = has_proc(p) && is_kernel_root(c->euid);
    if (c->euid && !p->line.n_caps)
        return;
    const char *status = file_text(p, "/proc/self/status", NULL);
    const char *last = file_text(p, "/proc/sys/kernel/cap_last_cap", NULL);
    uint32_t number = 0;
    c->effective = hexadecimal_after(row(status, "CapEff:"));
    c->inheritable = hexadecimal_after(row(status, "CapInh:"));
    c->bounding = hexadecimal_after(row(status, "CapBnd:"));
    for (; last && *last >= '0' && *last <= '9' && number < 64; last++)
        number = number * 10 + (uint32_t)(*last - '0');
    if (number == 0 || number > 62)
        number = CAP_LAST;
    c->known = (1ULL << (number + 1)) - 1;
    if (c->euid == 0) {
        c->uid_map = file_text(p, "/proc/self/uid_map", NULL);
        c->gid_map = file_text(p, "/proc/self/gid_map", NULL);
    }
}

static bool check_fd(struct program *p, int fd)
{
    struct digits d;
    int ret = sys_get_fd_flags(fd);
    return ret >= 0 || FAIL(p, "Invalid fd: ", digits_of(&d, fd), ": ", errno_text(-ret));
}

bool check_open(struct program *p)
{
    for (int i = 0; i < NSBOX_BWRAP_FDS; i++)
        if (p->line.fd[i] >= 0 && i != NSBOX_BWRAP_SECCOMP && !check_fd(p, p->line.fd[i]))
            return false;
    for (uint64_t k = 0; k < p->line.n_ops; k++) {
        const nsbox_bwrap_op *op = &p->line.ops[k];
        if ((op->what == NSBOX_BWRAP_BIND_FD || op->what == NSBOX_BWRAP_RO_BIND_FD) && !check_fd(p, op->fd))
            return false;
    }
    return true;
}
