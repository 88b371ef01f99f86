/* op_seatbelt.c: finds libsandbox and uses it. Its functions are private to macOS, older than most programs, and in
 * no header: each may be missing. */
#include "system.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "darwin/calls.h"
#include "seatbelt.h"

static struct {
    void *(*create_params)(void);
    int (*set_param)(void *params, const char *key, const char *value);
    void (*free_params)(void *params);
    void *(*compile_string)(const char *text, void *params, char **error);
    void (*free_profile)(void *profile);
    int (*apply)(void *profile);
    void (*free_error)(char *error);
    int (*init_with_parameters)(const char *profile, uint64_t flags, const char *const params[], char **error);
    int (*check)(pid_t pid, const char *operation, int type,
                 ...); /* arm64 passes the arguments for `...` differently */
} lib;

static pthread_once_t loaded = PTHREAD_ONCE_INIT;

/* There is no promise that two threads may compile at the same time. */
static pthread_mutex_t compiling = PTHREAD_MUTEX_INITIALIZER;

/* Frees the lock in a child that another thread of this program forked meanwhile: nobody would ever unlock it there. */
static void forget_lock(void)
{
    static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
    compiling = unlocked;
}

/* Finds a function. `function` is the address of a pointer to it, which C lets dlsym(3) fill in only as bytes. */
static void *find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol;
}

/* Searches libsandbox, then where it may pass them on to: libSystem. */
static void find_anywhere(void *library, const char *name, void *function)
{
    if (!library || !find(library, name, function))
        find(RTLD_DEFAULT, name, function);
}

static void load(void)
{
    pthread_atfork(NULL, NULL, forget_lock);
    void *library = dlopen(NSBOX_LIBSANDBOX, RTLD_NOW | RTLD_LOCAL);
    if (library) {
        find(library, "sandbox_create_params", &lib.create_params);
        find(library, "sandbox_set_param", &lib.set_param);
        find(library, "sandbox_free_params", &lib.free_params);
        find(library, "sandbox_compile_string", &lib.compile_string);
        find(library, "sandbox_free_profile", &lib.free_profile);
        find(library, "sandbox_apply", &lib.apply);
        find(library, "sandbox_free_error", &lib.free_error);
    }
    find_anywhere(library, "sandbox_init_with_parameters", &lib.init_with_parameters);
    find_anywhere(library, "sandbox_check", &lib.check);
}

int nsbox_seatbelt_ways(void)
{
    pthread_once(&loaded, load);
    int can_compile = lib.create_params && lib.set_param && lib.free_params && lib.compile_string && lib.free_profile &&
                      lib.apply && lib.free_error;
    return (can_compile ? NSBOX_WAY_COMPILED : 0) | (lib.init_with_parameters ? NSBOX_WAY_INIT : 0);
}

int nsbox_seatbelt_confined(void)
{
    pthread_once(&loaded, load);
    return lib.check ? lib.check(getpid(), NULL, 0) != 0 : -ENOSYS;
}

static void say(char *message, uint64_t size, const char *what, const char *which)
{
    uint64_t n = 0;
    for (const char *s = what; *s && n + 1 < size; s++)
        message[n++] = *s;
    for (const char *s = which; *s && n + 1 < size; s++)
        message[n++] = *s;
    if (size)
        message[n] = 0;
}

/* Compiles a profile; the functions for that exist. */
static void *compile(const char *profile, const char *const *params, char *message, uint64_t size)
{
    char *error = NULL;
    void *set = lib.create_params();
    if (!set) {
        say(message, size, "no memory for parameters", "");
        return NULL;
    }
    for (; params[0]; params += 2)
        if (!params[1] || lib.set_param(set, params[0], params[1]) != 0) {
            say(message, size, "parameter refused: ", params[0]);
            lib.free_params(set);
            return NULL;
        }
    void *made = lib.compile_string(profile, set, &error);
    if (!made)
        say(message, size, error ? error : "refused without a reason", "");
    if (error)
        lib.free_error(error);
    lib.free_params(set);
    return made;
}

void *nsbox_seatbelt_compile(const char *profile, const char *const *params, char *message, uint64_t size)
{
    say(message, size, "", "");
    if (!(nsbox_seatbelt_ways() & NSBOX_WAY_COMPILED)) {
        say(message, size, "libsandbox lacks functions for it", "");
        return NULL;
    }
    pthread_mutex_lock(&compiling);
    void *made = compile(profile, params, message, size);
    pthread_mutex_unlock(&compiling);
    return made;
}

void nsbox_seatbelt_free(void *profile)
{
    if (profile && lib.free_profile)
        lib.free_profile(profile);
}

int seatbelt_apply(const void *profile)
{
    if (!lib.apply) /* this library made the profile, so the function was found in the caller */
        return -ENOSYS;
    errno = 0;
    if (lib.apply((void *)(uintptr_t)profile) == 0)
        return 0;
    return errno ? -errno : -EPERM;
}

int seatbelt_init(const char *profile, const char *const *params)
{
    char *error = NULL;
    pthread_once(&loaded, load);
    if (!lib.init_with_parameters)
        return -ENOSYS;
    errno = 0;
    int ret = lib.init_with_parameters(profile, 0, params, &error);
    int why = errno ? errno : EPERM;
    if (error && lib.free_error)
        lib.free_error(error);
    return ret == 0 ? 0 : -why;
}
