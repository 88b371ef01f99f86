/* helper.c: our helper program. It runs outside the sandbox, so it obeys only the process that executed it: its
 * arguments and one file, as helper.h says. */
#include "darwin/system/system.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "helper.h"
#include "darwin/system/seatbelt.h"
#include "orders.h"

enum { FAILED = 127, MOST_LOOKED_AT = 1024 };
enum whom { ITSELF, GROUP, ALL };

/* Reads a number that isn't negative, as the process that starts us writes it; or -1. */
static int decimal(const char *text)
{
    char *end;
    if (*text < '0' || *text > '9')
        return -1;
    errno = 0;
    long n = strtol(text, &end, 10);
    return errno || *end || n > INT32_MAX ? -1 : (int)n;
}

static void note_open(char is_open[MOST_LOOKED_AT])
{
    for (int fd = 0; fd < MOST_LOOKED_AT; fd++)
        is_open[fd] = fcntl(fd, F_GETFD) >= 0;
}

/* Keeps from the command what the system's libraries opened while we were unconfined. */
static void keep_from_command(const char was_open[MOST_LOOKED_AT])
{
    for (int fd = 3; fd < MOST_LOOKED_AT; fd++)
        if (!was_open[fd])
            set_cloexec(fd, 1); /* EBADF: it isn't open now */
}

static int confine(const struct orders *t)
{
    char was_open[MOST_LOOKED_AT];
    note_open(was_open);
    int ret = seatbelt_init(t->profile[0], (const char *const *)t->profile + 1);
    keep_from_command(was_open);
    return ret;
}

/* Returns only with an error. */
static int apply(int report, int profile, uint32_t *step)
{
    struct orders t;
    *step = NSBOX_STEP_PLAN;
    int ret = orders_read(profile, &t);
    close(profile);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_SANDBOX;
    ret = confine(&t);
    if (ret < 0)
        return ret;
    ret = report_send(report, 0, NSBOX_STEP_NONE);
    if (ret < 0)
        return ret;
    *step = NSBOX_STEP_EXEC;
    return execute((const char *const *)t.programs, (const char *const *)t.argv, (const char *const *)t.envp);
}

static int apply_main(const char *report_text, const char *profile_text)
{
    int report = decimal(report_text), profile = decimal(profile_text);
    uint32_t step = NSBOX_STEP_HELPER;
    /* Without the report descriptor nobody would learn of an error; left open, the command would have it. */
    if (report < 3 || set_cloexec(report, 1) < 0)
        return FAILED;
    int ret = profile < 3 || profile == report ? -EBADF : set_cloexec(profile, 1);
    if (ret >= 0)
        ret = apply(report, profile, &step);
    report_send(report, -ret, step);
    return FAILED;
}

/* Kills the group. A process in it may be forking just then, and its child could be missed. So this is repeated until
 * nothing is found; but not for ever, since dead processes that nobody reaps are found too. */
static void kill_group(int command)
{
    static const struct timespec ms = {0, 1000000};
    for (int i = 0; i < 100 && kill(-command, SIGKILL) == 0; i++)
        nanosleep(&ms, NULL);
}

/* Ends the command. Neither of the two numbers can belong to another process by now. As far as we know, the command
 * is alive; even as a zombie, it keeps its number until the caller, or the process that inherits it, reaps it. There
 * was only the time between the event and this call for that. And no process gets the number of a group that exists;
 * if the group has gone since, all numbers would have to be used up in that time. */
static void end(int command, int gone, enum whom whom)
{
    if (whom == ALL || (whom == GROUP && gone & WATCH_CALLER))
        kill_group(command);
    if (!(gone & WATCH_COMMAND))
        kill(command, SIGKILL);
}

static int watch_main(const char *caller_text, const char *command_text, enum whom whom)
{
    int caller = decimal(caller_text), command = decimal(command_text);
    struct watch w;
    if (caller < 1 || command < 2) /* -1 would be everybody's group */
        return FAILED;
    int gone = system_watch(&w, caller, command);
    if (gone > 0) /* before we report: the command exists, and waits for our report */
        end(command, gone, whom);
    if (report_send(1, gone < 0 ? -gone : gone ? ESRCH : 0, gone < 0 ? NSBOX_STEP_HELPER : NSBOX_STEP_LIFELINE) < 0)
        return FAILED;
    if (dup2(0, 1) < 0 || chdir("/") < 0) /* /dev/null; and a directory that nobody needs */
        return FAILED;
    if (gone)
        return gone < 0 ? FAILED : 0;
    gone = system_await(&w);
    if (gone < 0) /* can't happen; if it does, better end it too early than never */
        gone = WATCH_CALLER;
    end(command, gone, whom);
    return 0;
}

/* Returns what a fifth argument says is killed besides the command; or -1. */
static int whom_of(const char *text)
{
    return !text ? ITSELF : strcmp(text, HELPER_GROUP) == 0 ? GROUP : strcmp(text, HELPER_ALL) == 0 ? ALL : -1;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], HELPER_APPLY) == 0)
        return apply_main(argv[2], argv[3]);
    if (argc < 4 || argc > 5 || strcmp(argv[1], HELPER_WATCH) != 0)
        return FAILED;
    int whom = whom_of(argv[4]);
    return whom < 0 ? FAILED : watch_main(argv[2], argv[3], (enum whom)whom);
}
