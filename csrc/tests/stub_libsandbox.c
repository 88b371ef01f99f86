/* stub_libsandbox.c: replaces macOS's libsandbox in tests of the core on Linux.
 *
 * It confines nothing, but logs each call of one of its functions as a line of JSON. The log is the file that the
 * environment variable NSBOX_STUB_LOG named when the library was loaded: {"call": ..., "pid": ..., "tid": ...,
 * "live": ..., "args": [...]}. "live" is the number of parameter sets, profiles and errors that exist after the
 * call.
 *
 * NSBOX_STUB_FAIL names a function that fails, or is "death": then the process to be confined is killed. With
 * NSBOX_STUB_CONFINED=1 this process is in a sandbox already. Our helper program has an empty environment: there the
 * profile's parameters STUB_LOG, STUB_FAIL and STUB_LEAK (leave a descriptor open) say the same.
 *
 * What is applied shows in /proc/PID/status as NoNewPrivs, which a process inherits, as it would a sandbox. A second
 * time is refused, as on macOS. Any misuse aborts.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum kind { PARAMS = 0x70617261, PROFILE = 0x70726f66, ERROR = 0x6572726f, FREED = 0x66726565 };

/* Precedes every object that is handed out. */
struct object {
    uint64_t kind;
    size_t n; /* PARAMS: how many strings */
    char *strings[64];
    char text[];
};

void *sandbox_create_params(void);
int sandbox_set_param(void *params, const char *key, const char *value);
void sandbox_free_params(void *params);
void *sandbox_compile_string(const char *data, void *params, char **error);
void sandbox_free_profile(void *profile);
int sandbox_apply(void *profile);
void sandbox_free_error(char *error);
int sandbox_init_with_parameters(const char *profile, uint64_t flags, const char *const parameters[], char **error);
int sandbox_check(pid_t pid, const char *operation, int type, ...);

static char log_path[4096];
static char fails[64];
static int is_confined;
static atomic_int live, compiling;

/* ---- the log ------------------------------------------------------------------------------- */

struct line {
    size_t n;
    char text[1 << 16];
};

static void put(struct line *l, const char *text)
{
    size_t n = strlen(text);
    if (n > sizeof l->text - l->n)
        abort();
    memcpy(l->text + l->n, text, n);
    l->n += n;
}

static void put_number(struct line *l, long number)
{
    char digits[24], *at = digits + sizeof digits - 1;
    *at = 0;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    put(l, at);
}

/* Writes bytes that aren't plain ASCII as \u00XX: read as Latin-1 they are the same bytes. */
static void put_string(struct line *l, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    put(l, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        char plain[2] = {(char)c, 0}, escaped[7] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15], 0};
        put(l, c < ' ' || c > '~' || c == '"' || c == '\\' ? escaped : plain);
    }
    put(l, "\"");
}

/* Safe between fork and exec, as sandbox_apply() has to be. */
static void note(const char *call, const char *const *args, size_t n)
{
    struct line l;
    if (!log_path[0])
        return;
    int saved = errno;
    l.n = 0;
    put(&l, "{\"call\": \"");
    put(&l, call);
    put(&l, "\", \"pid\": ");
    put_number(&l, getpid());
    put(&l, ", \"tid\": ");
    put_number(&l, gettid());
    put(&l, ", \"live\": ");
    put_number(&l, atomic_load(&live));
    put(&l, ", \"args\": [");
    for (size_t i = 0; i < n; i++) {
        put(&l, i ? ", " : "");
        put_string(&l, args[i]);
    }
    put(&l, "]}\n");
    /* Open it each time: a command closes what isn't its own before it is confined. */
    int fd = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, l.text, l.n) != (ssize_t)l.n)
        abort();
    close(fd);
    errno = saved;
}

static void misused(const char *how)
{
    note("misused", &how, 1);
    abort();
}

static void set(char *setting, size_t size, const char *value)
{
    if (value && (size_t)snprintf(setting, size, "%s", value) >= size)
        abort();
}

/* In a forked child there is no other thread that compiles. */
static void forget_threads(void)
{
    atomic_store(&compiling, 0);
}

__attribute__((constructor)) static void load(void)
{
    pthread_atfork(NULL, NULL, forget_threads);
    const char *confined = getenv("NSBOX_STUB_CONFINED");
    set(log_path, sizeof log_path, getenv("NSBOX_STUB_LOG"));
    set(fails, sizeof fails, getenv("NSBOX_STUB_FAIL"));
    is_confined = confined && strcmp(confined, "1") == 0;
}

/* ---- objects ------------------------------------------------------------------------------- */

static struct object *make(enum kind kind, const char *text)
{
    struct object *o = calloc(1, sizeof *o + strlen(text) + 1);
    if (!o)
        abort();
    o->kind = kind;
    strcpy(o->text, text);
    atomic_fetch_add(&live, 1);
    return o;
}

static struct object *expect(void *object, enum kind kind, const char *how)
{
    struct object *o = object;
    if (!o || o->kind != kind)
        misused(how);
    return o;
}

/* Keeps the memory, so that a second time is noticed. */
static void drop(struct object *o, const char *call)
{
    o->kind = FREED;
    atomic_fetch_sub(&live, 1);
    note(call, NULL, 0);
}

static void refuse(const char *profile, char **error)
{
    char text[256];
    snprintf(text, sizeof text, "stub: %.40s: unbound variable: \xc3\xa9t\xc3\xa9", profile);
    *error = make(ERROR, text)->text;
}

static int fails_in(const char *call)
{
    return strcmp(fails, call) == 0;
}

static void die_if_asked(void)
{
    if (fails_in("death"))
        kill(getpid(), SIGKILL);
}

/* ---- libsandbox ---------------------------------------------------------------------------- */

#ifndef STUB_ONLY_INIT

void *sandbox_create_params(void)
{
    struct object *o = fails_in("create_params") ? NULL : make(PARAMS, "");
    note("create_params", NULL, 0);
    return o;
}

int sandbox_set_param(void *params, const char *key, const char *value)
{
    struct object *o = expect(params, PARAMS, "set_param of no parameters");
    const char *const args[] = {key, value};
    note("set_param", args, 2);
    if (fails_in("set_param"))
        return -1;
    if (o->n + 2 > sizeof o->strings / sizeof o->strings[0])
        misused("too many parameters for the stub");
    o->strings[o->n++] = strdup(key);
    o->strings[o->n++] = strdup(value);
    return 0;
}

void sandbox_free_params(void *params)
{
    struct object *o = expect(params, PARAMS, "free_params of no parameters");
    for (size_t i = 0; i < o->n; i++)
        free(o->strings[i]);
    drop(o, "free_params");
}

void *sandbox_compile_string(const char *data, void *params, char **error)
{
    struct object *o = expect(params, PARAMS, "compile_string without parameters");
    struct object *made = NULL;
    if (atomic_fetch_add(&compiling, 1))
        misused("two threads compile at a time");
    for (int i = 0; i < 100; i++)
        sched_yield(); /* gives another thread time to come in */
    const char *args[1 + sizeof o->strings / sizeof o->strings[0]] = {data};
    memcpy(args + 1, o->strings, o->n * sizeof *args);
    if (*error)
        misused("an error before there is one");
    if (fails_in("compile_string"))
        refuse(data, error);
    else
        made = make(PROFILE, data);
    note("compile_string", args, 1 + o->n);
    atomic_fetch_sub(&compiling, 1);
    return made;
}

void sandbox_free_profile(void *profile)
{
    drop(expect(profile, PROFILE, "free_profile of no profile"), "free_profile");
}

int sandbox_apply(void *profile)
{
    struct object *o = expect(profile, PROFILE, "apply of no profile");
    const char *const args[] = {o->text};
    note("apply", args, 1);
    die_if_asked();
    if (fails_in("apply") || is_confined) {
        errno = EPERM;
        return -1;
    }
    is_confined = 1;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

void sandbox_free_error(char *error)
{
    drop(expect(error - offsetof(struct object, text), ERROR, "free_error of no error"), "free_error");
}

#endif

int sandbox_init_with_parameters(const char *profile, uint64_t flags, const char *const parameters[], char **error)
{
    size_t n = 0;
    for (; parameters[n]; n += 2) {
        if (!parameters[n + 1])
            misused("a key without a value");
        if (strcmp(parameters[n], "STUB_LOG") == 0)
            set(log_path, sizeof log_path, parameters[n + 1]);
        if (strcmp(parameters[n], "STUB_FAIL") == 0)
            set(fails, sizeof fails, parameters[n + 1]);
        if (strcmp(parameters[n], "STUB_LEAK") == 0 && open("/dev/null", O_RDONLY) < 0)
            abort();
    }
    if (flags)
        misused("flags of init_with_parameters");
    const char *args[64] = {profile};
    if (n > 63)
        misused("too many parameters for the stub");
    memcpy(args + 1, parameters, n * sizeof *args);
    note("init_with_parameters", args, n + 1);
    die_if_asked();
    if (fails_in("init_with_parameters") || is_confined) {
        refuse(profile, error);
        errno = fails_in("init_with_parameters") ? EINVAL : EPERM;
        return -1;
    }
    is_confined = 1;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

int sandbox_check(pid_t pid, const char *operation, int type, ...)
{
    if (pid != getpid() || operation || type)
        misused("check of something else");
    note("check", NULL, 0);
    return is_confined;
}
