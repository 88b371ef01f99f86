/* parse.c: the words of a command line, one after the other. The order of the checks and their messages are
 * bubblewrap's, which clients match. */
#include "line.h"
#include "kernel/sys.h"

enum { MAX_ARGS = 9000 };

/* What carries out an option. args: its arguments. */
#define HANDLER(name) static void name(struct reader *r, const struct option *o, const char *const *args)

/* Warns that only the last one counts, if there was one before; `seen` has a bit for each. */
static void once(struct reader *r, const struct option *o, uint32_t *seen)
{
    uint32_t bit = 1u << o->value;
    if ((*seen & bit) && o->once) {
        const char **warning = reader_add(r, &r->warnings, sizeof *warning);
        const char *level = r->line->flags & NSBOX_BWRAP_LEVELS ? "<4>" : "";
        if (warning)
            *warning = reader_text(
                r, (const char *const[]){level, "bwrap: Only the last ", o->name, " option will take effect", NULL});
    }
    *seen |= bit;
}

/* ---- the options */

static const char *const *take(struct reader *r, const char *const *words);

HANDLER(args_file)
{
    (void)o;
    nsbox_bwrap_filter file;
    if (!reader_contents(r, args[0], "--args", &file))
        return;
    struct list words = {0};
    const char *text = (const char *)file.code, *end = text + file.len;
    while (text < end && !r->stopped) { /* a NUL may end each word, or separate the words */
        const char **item = reader_add(r, &words, sizeof *item);
        if (item)
            *item = text;
        text += text_length(text) + 1;
    }
    r->counted += words.n;
    if (r->counted > MAX_ARGS)
        DIE(r, "Exceeded maximum number of arguments 9000");
    if (r->stopped || !words.n)
        return;
    r->in_file = true;
    take(r, words.items); /* a command in there is ignored, as bubblewrap does */
    r->in_file = false;
}

HANDLER(one_fd)
{
    if (o->value == NSBOX_BWRAP_SECCOMP && r->filters.n) {
        DIE(r, "--seccomp cannot be combined with --add-seccomp-fd");
        return;
    }
    once(r, o, &r->seen_fd);
    r->line->fd[o->value] = reader_fd(r, args[0]);
}

HANDLER(one_id)
{
    struct number number = number_of(args[0], 10);
    once(r, o, &r->seen_id);
    if (!is_whole(number))
        DIE(r, "Invalid ", o->name + 2, ": ", args[0]);
    else
        r->line->id[o->value] = (int64_t)number.amount;
}

HANDLER(one_text)
{
    if (o->value == NSBOX_BWRAP_ARGV0 && r->line->text[NSBOX_BWRAP_ARGV0]) {
        DIE(r, "--argv0 used multiple times");
        return;
    }
    once(r, o, &r->seen_text);
    r->line->text[o->value] = args[0];
    if (o->value == NSBOX_BWRAP_HOSTNAME)
        ops_add(r, o, args);
}

HANDLER(add_filter)
{
    (void)o;
    nsbox_bwrap_filter found;
    if (r->line->fd[NSBOX_BWRAP_SECCOMP] >= 0) {
        DIE(r, "--add-seccomp-fd cannot be combined with --seccomp");
        return;
    }
    if (!reader_contents(r, args[0], "seccomp", &found))
        return;
    if (found.len % 8) {
        DIE(r, "Invalid seccomp data, must be multiple of 8");
        return;
    }
    nsbox_bwrap_filter *filter = reader_add(r, &r->filters, sizeof *filter);
    if (filter)
        *filter = found;
}

static bool is_same_name(const char *one, const char *upper)
{
    for (; *one && *upper; one++, upper++)
        if ((*one >= 'a' && *one <= 'z' ? *one - 32 : *one) != *upper)
            return false;
    return *one == *upper;
}

HANDLER(capability)
{
    const char *name = args[0];
    const char *const *names = capability_names;
    struct number number = number_of(name, 0);
    int32_t found = -2, n = 0;
    for (; names[n]; n++)
        if (is_same_name(name, names[n]))
            found = n;
    if (number.is_one && !number.is_negative && !number.is_huge && number.amount < (uint64_t)n)
        found = (int32_t)number.amount;
    if (is_same_name(name, "ALL"))
        found = -1;
    if (found == -2) {
        DIE(r, "unknown cap: ", name);
        return;
    }
    nsbox_bwrap_cap *cap = reader_add(r, &r->caps, sizeof *cap);
    if (cap)
        *cap = (nsbox_bwrap_cap){found, o->value};
}

HANDLER(lock_file)
{
    (void)o;
    const char **item = reader_add(r, &r->lock_files, sizeof *item);
    if (item)
        *item = args[0];
}

static void stop_with(struct reader *r, uint32_t outcome)
{
    r->line->outcome = outcome;
    r->stopped = true;
}

HANDLER(help)
{
    (void)o, (void)args;
    stop_with(r, NSBOX_BWRAP_ASKS_HELP);
}

HANDLER(version)
{
    (void)o, (void)args;
    stop_with(r, NSBOX_BWRAP_ASKS_VERSION);
}

HANDLER(level_prefix)
{
    (void)o, (void)args;
    r->line->flags |= NSBOX_BWRAP_LEVELS;
}

HANDLER(new_namespace)
{
    (void)args;
    r->line->unshare |= o->value;
}

HANDLER(attempt)
{
    (void)args;
    r->line->wanted |= o->value;
}

HANDLER(new_all)
{
    (void)o, (void)args;
    r->line->unshare |= NSBOX_BWRAP_IPC | NSBOX_BWRAP_PID | NSBOX_BWRAP_NET | NSBOX_BWRAP_UTS;
    r->line->wanted |= NSBOX_BWRAP_USER | NSBOX_BWRAP_CGROUP;
}

HANDLER(share_net)
{
    (void)o, (void)args;
    r->line->unshare &= ~(uint32_t)NSBOX_BWRAP_NET;
}

HANDLER(flag)
{
    (void)args;
    r->line->flags |= o->value;
}

HANDLER(clearenv)
{
    (void)o, (void)args;
    r->env.n = 0;
    r->line->flags |= NSBOX_BWRAP_CLEARED;
}

/* By enum reading. */
static void (*const handlers[NSBOX_BWRAP_READINGS])(struct reader *, const struct option *, const char *const *) = {
    [NSBOX_BWRAP_READS_HELP] = help,          [NSBOX_BWRAP_READS_VERSION] = version,
    [NSBOX_BWRAP_READS_ARGS] = args_file,     [NSBOX_BWRAP_READS_LEVEL_PREFIX] = level_prefix,
    [NSBOX_BWRAP_READS_NEW] = new_namespace,  [NSBOX_BWRAP_READS_ATTEMPT] = attempt,
    [NSBOX_BWRAP_READS_NEW_ALL] = new_all,    [NSBOX_BWRAP_READS_SHARE_NET] = share_net,
    [NSBOX_BWRAP_READS_FD] = one_fd,          [NSBOX_BWRAP_READS_ID] = one_id,
    [NSBOX_BWRAP_READS_TEXT] = one_text,      [NSBOX_BWRAP_READS_FLAG] = flag,
    [NSBOX_BWRAP_READS_CLEARENV] = clearenv,  [NSBOX_BWRAP_READS_SETENV] = env_set,
    [NSBOX_BWRAP_READS_UNSETENV] = env_unset, [NSBOX_BWRAP_READS_OP] = ops_add,
    [NSBOX_BWRAP_READS_LAYER] = ops_layer,    [NSBOX_BWRAP_READS_PERMS] = ops_perms,
    [NSBOX_BWRAP_READS_SIZE] = ops_size,      [NSBOX_BWRAP_READS_ADD_SECCOMP] = add_filter,
    [NSBOX_BWRAP_READS_CAP] = capability,     [NSBOX_BWRAP_READS_LOCK_FILE] = lock_file,
};

/* What bubblewrap says when arguments are missing. Clients match it, so its oddities stay. */
static void die_of_shortage(struct reader *r, const struct option *o)
{
    const char *name = text_is(o->name, "--ro-bind-fd") ? "--bind-fd" : o->name;
    bool is_odd = text_is(name, "--argv0") || text_is(name, "--chdir") || text_is(name, "--remount-ro");
    const char *one = is_odd ? " takes one argument" : " takes an argument";
    if (o->reading == NSBOX_BWRAP_READS_LAYER)
        DIE(r, stray_layer);
    else
        DIE(r, name, o->n_args == 1 ? one : o->n_args == 2 ? " takes two arguments" : " takes three arguments");
}

/* Refuses an option that stands between --perms, --size or --overlay-src and the option that they are about. */
static void check_used_up(struct reader *r, const struct option *o)
{
    if (o->reading != NSBOX_BWRAP_READS_PERMS && o->reading != NSBOX_BWRAP_READS_SIZE) {
        if (r->perms >= 0)
            DIE(r, "--perms must be followed by an option that creates a file");
        if (r->size)
            DIE(r, "--size must be followed by --tmpfs");
    }
    if (o->reading != NSBOX_BWRAP_READS_LAYER && r->layers.n)
        DIE(r, stray_layer);
}

static const struct option *option_of(const char *name)
{
    for (const struct option *o = option_table; o->name; o++)
        if (text_is(o->name, name))
            return o;
    return NULL;
}

/* Carries out the options one by one; returns the words after them. */
static const char *const *take(struct reader *r, const char *const *words)
{
    while (*words && !r->stopped) {
        if (text_is(*words, "--"))
            return words + 1;
        const struct option *o = option_of(*words);
        if (!o) {
            if (**words == '-')
                DIE(r, "Unknown option ", *words);
            return words;
        }
        words++;
        uint32_t n = 0;
        while (n < o->n_args && words[n])
            n++;
        if (o->reading == NSBOX_BWRAP_READS_ARGS && r->in_file)
            DIE(r, "--args not supported in arguments file");
        else if (n < o->n_args)
            die_of_shortage(r, o);
        else
            handlers[o->reading](r, o, words);
        if (!r->stopped)
            check_used_up(r, o);
        words += n;
    }
    return words;
}

/* ---- the whole */

static void begin(struct reader *r, const char *const *envp)
{
    for (int i = 0; i < NSBOX_BWRAP_FDS; i++)
        r->line->fd[i] = -1;
    for (int i = 0; i < NSBOX_BWRAP_IDS; i++)
        r->line->id[i] = -1;
    r->perms = -1;
    for (; *envp && !r->stopped; envp++) {
        const char **entry = reader_add(r, &r->env, sizeof *entry);
        if (entry)
            *entry = *envp;
    }
}

static void finish(struct reader *r)
{
    nsbox_bwrap_line *line = r->line;
    const char **end = reader_add(r, &r->env, sizeof *end);
    if (end)
        *end = NULL;
    line->env = r->env.items;
    line->n_env = r->env.n - 1;
    line->ops = r->ops.items;
    line->n_ops = r->ops.n;
    line->warnings = r->warnings.items;
    line->n_warnings = r->warnings.n;
    line->lock_files = r->lock_files.items;
    line->n_lock_files = r->lock_files.n;
    line->filters = r->filters.items;
    line->n_filters = r->filters.n;
    line->caps = r->caps.items;
    line->n_caps = r->caps.n;
    line->fds = r->fds.items;
    line->n_fds = r->fds.n;
}

int nsbox_bwrap_parse(nsbox_bwrap_line *line, const char *const *words, const char *const *envp, uint32_t uid,
                      uint32_t gid)
{
    *line = (nsbox_bwrap_line){0};
    struct reader r = {.line = line};
    begin(&r, envp);
    while (words[r.counted])
        r.counted++;
    if (!r.counted)
        stop_with(&r, NSBOX_BWRAP_NO_COMMAND);
    if (r.counted > MAX_ARGS)
        DIE(&r, "Exceeded maximum number of arguments 9000");
    if (!r.stopped)
        line->command = take(&r, words);
    if (!r.stopped && r.layers.n)
        DIE(&r, stray_layer);
    if (!r.stopped)
        needs_of_namespaces(&r);
    if (!r.stopped && !*line->command)
        stop_with(&r, NSBOX_BWRAP_NO_COMMAND);
    if (!r.stopped)
        needs_of_options(&r, uid, gid);
    if (!r.no_memory)
        finish(&r);
    if (r.no_memory) {
        nsbox_bwrap_forget(line);
        return -ENOMEM;
    }
    while (line->command && line->command[line->n_command])
        line->n_command++;
    return 0;
}

void nsbox_bwrap_forget(nsbox_bwrap_line *line)
{
    memory_give_back(&line->memory);
    *line = (nsbox_bwrap_line){0};
}
