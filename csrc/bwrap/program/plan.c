/* plan.c: from the ops of a command line to the plan of the core. What bubblewrap does in one op may be several. */
#include "program.h"

enum { MAX_PROCS = 8 };

/* ".." is refused, since symlinks give it two meanings. */
static bool check_dest(struct program *p, const char *dest, const nsbox_bwrap_op *op)
{
    uint64_t n = 0;
    for (const char *part = dest; *part; n++, part++)
        if (part[0] == '/' && part[1] == '.' && part[2] == '.' && (part[3] == '/' || !part[3]))
            return FAIL(p, op->option, ": '", op->dest, "' has a '..'");
    return n < NSBOX_PATH_MAX || FAIL(p, op->option, ": the path is longer than 4095 bytes");
}

static struct step *add(struct program *p, uint32_t code, const char *dest, const nsbox_bwrap_op *op)
{
    if (dest && !check_dest(p, dest, op))
        return NULL;
    struct step *s = list_add(&p->line.memory, &p->steps, sizeof *s);
    if (!s) {
        no_memory(p);
        return NULL;
    }
    *s = (struct step){.code = code, .fd = -1, .dest = dest, .op = op};
    return s;
}

static bool with_text(struct step *s, const char *text)
{
    if (!s)
        return false;
    s->src = (const uint8_t *)text;
    s->src_len = text_length(text) + 1;
    return true;
}

/* ---- ops */

/* Hides nsbox's own directory where an op shows it, or only the key in it if the command line names something there. */
static bool mask_state(struct program *p, const nsbox_bwrap_op *op, const char *src)
{
    const char *way = *p->state ? path_below(p->state, src) : NULL;
    bool is_named = false;
    if (!way)
        return true;
    const char *at = JOIN(p, text_is(op->dest, "/") ? "" : op->dest, *way ? "/" : "", way);
    for (uint64_t i = 0; at && i < p->line.n_ops; i++) {
        const char *dest = p->line.ops[i].dest, *inside = dest ? path_below(dest, at) : NULL;
        is_named = is_named || (inside && *inside);
    }
    if (at && (is_named || !*way))
        at = JOIN(p, at, "/key");
    struct step *s = at ? add(p, NSBOX_OP_MASK, at, op) : NULL;
    if (s)
        s->flags = NSBOX_OPTIONAL;
    return s;
}

static bool bind(struct program *p, const nsbox_bwrap_op *op)
{
    const char *src = source_followed(p, op->src, op->optional);
    if (!src || !*src)
        return src != NULL;
    struct step *s = add(p, NSBOX_OP_BIND, op->dest, op);
    if (!with_text(s, src))
        return false;
    s->flags = NSBOX_NOFOLLOW; /* a link that is put there in the meantime isn't followed */
    s->flags |= op->what == NSBOX_BWRAP_RO_BIND ? NSBOX_RDONLY : op->what == NSBOX_BWRAP_DEV_BIND ? NSBOX_DEVICES : 0;
    s->flags |= op->optional ? NSBOX_OPTIONAL : 0;
    return mask_state(p, op, src);
}

static bool bind_fd(struct program *p, const nsbox_bwrap_op *op)
{
    struct step *s = add(p, NSBOX_OP_BIND, op->dest, op);
    if (!s)
        return false;
    s->flags = NSBOX_FROM_FD | (op->what == NSBOX_BWRAP_RO_BIND_FD ? NSBOX_RDONLY : 0);
    s->fd = op->fd;
    struct digits d;
    const char *link = *p->state ? JOIN(p, "/proc/self/fd/", digits_of(&d, op->fd)) : "";
    const char *src = link && *link ? source_followed(p, link, true) : link;
    return src && (!*src || mask_state(p, op, src));
}

/* A part of another op's, at a name below its destination. */
static struct step *below(struct program *p, uint32_t code, const nsbox_bwrap_op *op, const char *name)
{
    const char *dest = JOIN(p, text_is(op->dest, "/") ? "" : op->dest, "/", name);
    return dest ? add(p, code, dest, op) : NULL;
}

/* The caller's /proc, for a command in the caller's pid namespace. Settings that uid 0 could write are read-only. */
static bool proc(struct program *p, const nsbox_bwrap_op *op)
{
    static const char *const settings[] = {"sys", "sysrq-trigger", "irq", "bus", "fs", "asound"}; /* op_mount.c's */
    bool cover = p->caller.is_kernel_root;
    if ((p->line.unshare & NSBOX_BWRAP_PID) || p->line.fd[NSBOX_BWRAP_PIDNS] >= 0) {
        struct step *s = add(p, NSBOX_OP_PROC, op->dest, op);
        if (s)
            s->flags = cover ? NSBOX_COVER : 0;
        return s;
    }
    if (!with_text(add(p, NSBOX_OP_BIND, op->dest, op), "/proc"))
        return false;
    for (unsigned i = 0; cover && i < sizeof settings / sizeof settings[0]; i++) {
        const char *src = JOIN(p, "/proc/", settings[i]);
        struct step *s = src ? below(p, NSBOX_OP_BIND, op, settings[i]) : NULL;
        if (!with_text(s, src))
            return false;
        s->flags = NSBOX_RDONLY | NSBOX_OPTIONAL;
    }
    return true;
}

static bool dev(struct program *p, const nsbox_bwrap_op *op)
{
    static const char *const devices[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const char *const links[][2] = {{"stdin", "/proc/self/fd/0"},  {"stdout", "/proc/self/fd/1"},
                                           {"stderr", "/proc/self/fd/2"}, {"fd", "/proc/self/fd"},
                                           {"core", "/proc/kcore"},       {"ptmx", "pts/ptmx"}};
    struct step *s = add(p, NSBOX_OP_TMPFS, op->dest, op);
    if (!s)
        return false;
    s->mode = 0755;
    for (unsigned i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        const char *src = JOIN(p, "/dev/", devices[i]);
        s = src ? below(p, NSBOX_OP_BIND, op, devices[i]) : NULL;
        if (!with_text(s, src))
            return false;
        s->flags = NSBOX_RDONLY | NSBOX_DEVICES;
    }
    for (unsigned i = 0; i < sizeof links / sizeof links[0]; i++)
        if (!with_text(below(p, NSBOX_OP_SYMLINK, op, links[i][0]), links[i][1]))
            return false;
    s = below(p, NSBOX_OP_DIR, op, "shm");
    if (!s)
        return false;
    s->mode = 01777;
    if (!below(p, NSBOX_OP_DEVPTS, op, "pts"))
        return false;
    s = below(p, NSBOX_OP_BIND, op, "console");
    if (!with_text(s, "/dev/console"))
        return false;
    s->flags = NSBOX_PROBE_TTY | NSBOX_RDONLY | NSBOX_DEVICES;
    return true;
}

/* The message queues of the caller's ipc namespace can only be shown, and by its owner. */
static bool mqueue(struct program *p, const nsbox_bwrap_op *op)
{
    if (p->line.unshare & NSBOX_BWRAP_IPC)
        return add(p, NSBOX_OP_MQUEUE, op->dest, op);
    if (p->caller.euid != 0)
        return FAIL(p, "Can't mount mqueue on ", op->dest, ": ", errno_text(EPERM), " (without --unshare-ipc)");
    return with_text(add(p, NSBOX_OP_BIND, op->dest, op), "/dev/mqueue");
}

/* The contents of a descriptor. */
static bool data(struct program *p, const nsbox_bwrap_op *op)
{
    uint8_t *bytes;
    uint64_t len;
    bool is_file = op->what == NSBOX_BWRAP_FILE;
    int ret = fd_contents(p, op->fd, &bytes, &len);
    if (ret == 0 && len > UINT32_MAX / 4)
        ret = -EFBIG;
    if (ret < 0)
        return FAIL(p, "Can't write data to file ", op->dest, ": ", errno_text(-ret));
    struct step *s = add(p, is_file ? NSBOX_OP_FILE : NSBOX_OP_DATA, op->dest, op);
    if (!s)
        return false;
    s->src = bytes;
    s->src_len = len;
    s->count = (uint32_t)len;
    s->mode = op->mode;
    s->flags = op->what == NSBOX_BWRAP_RO_BIND_DATA ? NSBOX_RDONLY : 0;
    return true;
}

static bool overlay(struct program *p, const nsbox_bwrap_op *op)
{
    const char *paths[NSBOX_MAX_LAYERS + 2];
    uint64_t n = op->n_layers, len = 0;
    for (uint64_t i = 0; i < n; i++)
        paths[i] = op->layers[i];
    if (op->what == NSBOX_BWRAP_OVERLAY) {
        paths[n++] = op->upper;
        paths[n++] = op->work;
    }
    for (uint64_t i = 0; i < n; i++) {
        if (!(paths[i] = source_followed(p, paths[i], false)))
            return false;
        len += text_length(paths[i]) + 1;
    }
    struct step *s = add(p, NSBOX_OP_OVERLAY, op->dest, op);
    char *all = s ? program_take(p, len) : NULL;
    if (!all)
        return false;
    s->src = (const uint8_t *)all;
    s->src_len = len;
    s->count = (uint32_t)n;
    for (uint64_t i = 0; i < n; i++) {
        for (const char *from = paths[i]; *from; from++)
            *all++ = *from;
        all++;
    }
    s->flags = op->what == NSBOX_BWRAP_TMP_OVERLAY  ? NSBOX_OVL_TMP
               : op->what == NSBOX_BWRAP_RO_OVERLAY ? NSBOX_OVL_RO
                                                    : 0;
    for (uint64_t i = 0; i < n; i++)
        if (!mask_state(p, op, paths[i]))
            return false;
    return true;
}

/* The ops that are one of the core's. */
static bool simple(struct program *p, const nsbox_bwrap_op *op)
{
    static const uint32_t codes[NSBOX_BWRAP_WHATS] = {
        [NSBOX_BWRAP_REMOUNT_RO] = NSBOX_OP_REMOUNT_RO,
        [NSBOX_BWRAP_TMPFS] = NSBOX_OP_TMPFS,
        [NSBOX_BWRAP_DIR] = NSBOX_OP_DIR,
        [NSBOX_BWRAP_SYMLINK] = NSBOX_OP_SYMLINK,
        [NSBOX_BWRAP_CHMOD] = NSBOX_OP_CHMOD,
        [NSBOX_BWRAP_OP_HOSTNAME] = NSBOX_OP_HOSTNAME,
    };
    struct step *s = add(p, codes[op->what], op->dest, op);
    if (!s)
        return false;
    s->mode = op->mode;
    s->size = op->size;
    return op->src ? with_text(s, op->src) : true;
}

static bool one(struct program *p, const nsbox_bwrap_op *op)
{
    switch (op->what) {
    case NSBOX_BWRAP_BIND:
    case NSBOX_BWRAP_RO_BIND:
    case NSBOX_BWRAP_DEV_BIND:
        return bind(p, op);
    case NSBOX_BWRAP_BIND_FD:
    case NSBOX_BWRAP_RO_BIND_FD:
        return bind_fd(p, op);
    case NSBOX_BWRAP_PROC:
        return proc(p, op);
    case NSBOX_BWRAP_DEV:
        return dev(p, op);
    case NSBOX_BWRAP_MQUEUE:
        return mqueue(p, op);
    case NSBOX_BWRAP_FILE:
    case NSBOX_BWRAP_BIND_DATA:
    case NSBOX_BWRAP_RO_BIND_DATA:
        return data(p, op);
    case NSBOX_BWRAP_OVERLAY:
    case NSBOX_BWRAP_TMP_OVERLAY:
    case NSBOX_BWRAP_RO_OVERLAY:
        return overlay(p, op);
    default:
        return simple(p, op);
    }
}

bool plan_steps(struct program *p)
{
    unsigned procs = 0;
    if (!(p->state = source_of_state(p)))
        return false;
    for (uint64_t i = 0; i < p->line.n_ops; i++) {
        procs += p->line.ops[i].what == NSBOX_BWRAP_PROC;
        if (procs > MAX_PROCS)
            return FAIL(p, "--proc: at most 8 times; another one can be a --symlink");
        if (!one(p, &p->line.ops[i]))
            return false;
    }
    return !(p->line.unshare & NSBOX_BWRAP_NET) || add(p, NSBOX_OP_LOOPBACK, NULL, NULL);
}

/* ---- the blob */

static void put(uint8_t *to, const void *from, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        to[i] = ((const uint8_t *)from)[i];
}

bool plan_encode(struct program *p)
{
    const struct step *steps = p->steps.items;
    uint64_t n = p->steps.n, size = sizeof(nsbox_plan) + n * sizeof(nsbox_op), at = size++; /* an empty text */
    for (uint64_t i = 0; i < n; i++)
        size += steps[i].src_len + (steps[i].dest ? text_length(steps[i].dest) + 1 : 0);
    if (size > UINT32_MAX)
        return FAIL(p, "too much data for one sandbox");
    uint8_t *blob = program_take(p, size);
    if (!blob)
        return false;
    nsbox_plan *plan = (nsbox_plan *)(void *)blob;
    nsbox_op *op = (nsbox_op *)(void *)(blob + sizeof *plan);
    *plan = (nsbox_plan){NSBOX_MAGIC, NSBOX_VERSION, (uint32_t)size, (uint32_t)n};
    uint32_t empty = (uint32_t)at++;
    for (uint64_t i = 0; i < n; i++, op++) {
        const struct step *s = &steps[i];
        uint64_t len = s->dest ? text_length(s->dest) + 1 : 0;
        *op = (nsbox_op){s->code, s->flags, s->mode, s->fd, empty, empty, s->count, 0, s->size};
        if (s->src) {
            op->src = (uint32_t)at;
            put(blob + at, s->src, s->src_len);
            at += s->src_len;
        }
        if (s->dest) {
            op->dst = (uint32_t)at;
            put(blob + at, s->dest, len);
            at += len;
        }
    }
    p->request.plan = blob;
    p->request.plan_len = size;
    return true;
}
