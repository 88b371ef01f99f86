/* ops.c: the options that become ops, and those about the next op. */
#include "line.h"

enum { MAX_PATH = 4096, MAX_NAME = 64, MAX_LAYERS = 10, MAX_MODE = 07777 };

const char *const stray_layer =
    "--overlay-src must be followed by another --overlay-src or one of --overlay, --tmp-overlay, or --ro-overlay";

/* Returns a destination as an absolute path without empty and "." parts: bubblewrap takes every destination as
 * absolute. NULL: the reading has ended. */
static const char *inside(struct reader *r, const char *path)
{
    char *clean = reader_take(r, text_length(path) + 2), *end = clean;
    if (!clean)
        return NULL;
    while (*path) {
        const char *part = path;
        while (*path && *path != '/')
            path++;
        if (path > part && !(path - part == 1 && *part == '.')) {
            *end++ = '/';
            while (part < path)
                *end++ = *part++;
        }
        while (*path == '/')
            path++;
    }
    if (end == clean)
        *end = '/';
    return clean;
}

/* Returns --perms, or else the mode that is usual; --perms is used up. */
static uint32_t mode_or(struct reader *r, uint32_t usual)
{
    int64_t perms = r->perms;
    r->perms = -1;
    return perms < 0 ? usual : (uint32_t)perms;
}

static bool octal(struct reader *r, const struct option *o, const char *text, uint32_t *mode)
{
    struct number number = number_of(text, 8);
    if (!number.is_one || number.is_negative || number.is_huge || number.amount > MAX_MODE) {
        DIE(r, o->name, " takes an octal argument <= 07777");
        return false;
    }
    *mode = (uint32_t)number.amount;
    return true;
}

void ops_perms(struct reader *r, const struct option *o, const char *const *args)
{
    uint32_t mode;
    if (r->perms >= 0)
        DIE(r, "--perms given twice for the same action");
    else if (octal(r, o, args[0], &mode))
        r->perms = mode;
}

void ops_size(struct reader *r, const struct option *o, const char *const *args)
{
    (void)o;
    const char *text = args[0];
    struct number number = number_of(text, 0);
    if (r->size)
        DIE(r, "--size given twice for the same action");
    else if (*text < '0' || *text > '9' || !number.is_one || number.is_huge || !number.amount)
        DIE(r, "--size takes a non-zero number of bytes");
    else if (number.amount > INT64_MAX)
        DIE(r, "--size (for tmpfs) is limited to 9223372036854775807");
    else
        r->size = number.amount;
}

void ops_layer(struct reader *r, const struct option *o, const char *const *args)
{
    (void)o;
    const char **layer = reader_add(r, &r->layers, sizeof *layer);
    if (layer)
        *layer = args[0];
}

static void overlay(struct reader *r, const struct option *o, const char *const *args, nsbox_bwrap_op *op)
{
    uint64_t least = o->value == NSBOX_BWRAP_RO_OVERLAY ? 2 : 1, n = r->layers.n;
    if (n < least) {
        DIE(r, o->name, " requires at least ", least == 2 ? "two" : "one", " --overlay-src");
        return;
    }
    op->layers = r->layers.items;
    op->n_layers = n;
    r->layers = (struct list){0};
    op->dest = inside(r, args[o->n_args - 1]);
    if (o->value == NSBOX_BWRAP_OVERLAY) {
        op->upper = args[0];
        op->work = args[1];
    }
    if (op->dest && n > MAX_LAYERS) {
        struct digits d;
        DIE(r, o->name, ": has ", digits_of(&d, (int64_t)n), " layers, must have ", least == 2 ? "2" : "1", " to 10");
    }
}

static void symlink(struct reader *r, const struct option *o, const char *const *args, nsbox_bwrap_op *op)
{
    op->src = args[0];
    if (!*op->src)
        DIE(r, o->name, ": is empty");
    else if (text_length(op->src) >= MAX_PATH)
        DIE(r, o->name, ": the target is longer than 4095 bytes");
    else
        op->dest = inside(r, args[1]);
}

static void hostname(struct reader *r, const struct option *o, const char *name, nsbox_bwrap_op *op)
{
    op->src = name;
    if (!*name)
        DIE(r, o->name, ": is empty");
    else if (text_length(name) > MAX_NAME)
        DIE(r, o->name, ": '", name, "' is longer than 64 bytes");
}

/* The ops of a mode: chmod's is an argument, the others' may be --perms. */
static void with_mode(struct reader *r, const struct option *o, const char *const *args, nsbox_bwrap_op *op)
{
    switch (op->what) {
    case NSBOX_BWRAP_CHMOD:
        if (octal(r, o, args[0], &op->mode))
            op->dest = inside(r, args[1]);
        return;
    case NSBOX_BWRAP_TMPFS:
        op->size = r->size;
        r->size = 0;
        op->mode = mode_or(r, 0755);
        op->dest = inside(r, args[0]);
        return;
    case NSBOX_BWRAP_DIR:
        op->mode = mode_or(r, 0755);
        op->dest = inside(r, args[0]);
        return;
    default: /* FILE, BIND_DATA, RO_BIND_DATA */
        op->fd = reader_fd(r, args[0]);
        op->mode = mode_or(r, op->what == NSBOX_BWRAP_FILE ? 0666 : 0600);
        if (op->fd >= 0)
            op->dest = inside(r, args[1]);
    }
}

void ops_add(struct reader *r, const struct option *o, const char *const *args)
{
    nsbox_bwrap_op *op = reader_add(r, &r->ops, sizeof *op);
    if (!op)
        return;
    op->what = o->reading == NSBOX_BWRAP_READS_TEXT ? NSBOX_BWRAP_OP_HOSTNAME : o->value & ~(uint32_t)NSBOX_BWRAP_TRY;
    op->optional = o->reading == NSBOX_BWRAP_READS_OP && (o->value & NSBOX_BWRAP_TRY);
    op->option = o->name;
    op->fd = -1;
    switch (op->what) {
    case NSBOX_BWRAP_OP_HOSTNAME:
        hostname(r, o, args[0], op);
        return;
    case NSBOX_BWRAP_BIND:
    case NSBOX_BWRAP_RO_BIND:
    case NSBOX_BWRAP_DEV_BIND:
        op->src = args[0];
        op->dest = inside(r, args[1]);
        return;
    case NSBOX_BWRAP_BIND_FD:
    case NSBOX_BWRAP_RO_BIND_FD:
        op->fd = reader_fd(r, args[0]);
        if (op->fd >= 0)
            op->dest = inside(r, args[1]);
        return;
    case NSBOX_BWRAP_OVERLAY:
    case NSBOX_BWRAP_TMP_OVERLAY:
    case NSBOX_BWRAP_RO_OVERLAY:
        overlay(r, o, args, op);
        return;
    case NSBOX_BWRAP_SYMLINK:
        symlink(r, o, args, op);
        return;
    case NSBOX_BWRAP_REMOUNT_RO:
    case NSBOX_BWRAP_PROC:
    case NSBOX_BWRAP_DEV:
    case NSBOX_BWRAP_MQUEUE:
        op->dest = inside(r, args[0]);
        return;
    default:
        with_mode(r, o, args, op);
    }
}
