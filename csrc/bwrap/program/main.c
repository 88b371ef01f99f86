/* main.c: the program, from its first instruction to its exit status. */
#include "program.h"

#define BWRAP_VERSION "0.11.1" /* whose behaviour this is; clients ask for it */

enum { FAILED = 1 };

/* By this `nsbox bwrap --install` knows a program of its own. */
static const char mark[] = "nsbox's bwrap, in C";

/* ---- messages */

void say(const char *text)
{
    sys_write(2, text, text_length(text));
}

bool no_memory(struct program *p)
{
    if (!p->has_failed)
        say("bwrap: Cannot allocate memory\n");
    p->has_failed = true;
    return false;
}

void *program_take(struct program *p, uint64_t n)
{
    void *found = memory_take(&p->line.memory, n);
    if (!found)
        no_memory(p);
    return found;
}

char *program_text(struct program *p, const char *const *parts)
{
    char *text = text_join(&p->line.memory, parts);
    if (!text)
        no_memory(p);
    return text;
}

bool fail(struct program *p, const char *const *parts)
{
    const char *problem = program_text(p, parts);
    const char *text =
        problem ? JOIN(p, p->line.flags & NSBOX_BWRAP_LEVELS ? "<3>" : "", "bwrap: ", problem, "\n") : NULL;
    if (text)
        say(text);
    p->has_failed = true;
    return false;
}

void die_of(int number)
{
    struct sys_sigaction usual = {.handler = SIG_DFL};
    sys_sigset only = SIGNAL_BIT(number);
    if (number != SIGKILL)
        sys_sigaction(number, &usual, NULL);
    sys_sigprocmask(SIG_UNBLOCK, &only, NULL);
    sys_kill(sys_getpid(), number);
}

/* ---- the end with the parent */

/* Lets this process be killed with its parent, which may have ended already; returns its former death signal. */
static int tie(int parent)
{
    int before = 0;
    sys_prctl(PR_GET_PDEATHSIG, (unsigned long)(uintptr_t)&before, 0);
    sys_prctl(PR_SET_PDEATHSIG, SIGKILL, 0);
    if (sys_getppid() != parent)
        die_of(SIGKILL);
    return before;
}

/* ---- one run */

/* Makes everything that the core needs; false if that has failed. */
static bool prepare(struct program *p)
{
    nsbox_request *r = &p->request;
    if (p->line.text[NSBOX_BWRAP_EXEC_LABEL] || p->line.text[NSBOX_BWRAP_FILE_LABEL])
        return FAIL(p, "labeling not supported on this system");
    caller_ask(p);
    if (!check_open(p) || !plan_steps(p) || !plan_encode(p) || !request_isolation(p) || !check_open(p) ||
        !request_command(p)) /* reading contents has closed descriptors */
        return false;
    uint64_t arena = nsbox_arena_size((uint32_t)p->steps.n);
    /* The children write to it, and a fork mustn't make its pages copy-on-write. */
    uint8_t *shared = sys_map_shared(arena + sizeof *r->result);
    if (!shared)
        return no_memory(p);
    r->arena = shared;
    r->arena_len = arena;
    r->result = (nsbox_result *)(void *)(shared + arena);
    r->result->init_pidfd = r->result->init_says = r->result->go_fd = r->result->pidfd = -1;
    r->result->user_fd = r->result->mnt_fd = r->result->null_fd = r->result->image_fd = -1;
    if (r->pid_fd >= 0) /* otherwise processes in a joined pid namespace could trace its children */
        sys_prctl(PR_SET_DUMPABLE, 0, 0);
    return true;
}

/* Keeps what waiting needs: a signal for a command that has changed its user. Without a pid namespace of its own, the
 * command sees this process, and has its user: it must not trace it, nor read its environment (ptrace(2)). */
static void drop_privileges(const struct program *p)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}, {0}};
    sys_prctl(PR_SET_DUMPABLE, 0, 0);
    data[0].effective = data[0].permitted = (uint32_t)p->caller.effective & 1u << CAP_KILL;
    sys_capset(&head, data);
    sys_prctl(PR_SET_NO_NEW_PRIVS, 1, 0);
}

static int run(struct program *p)
{
    nsbox_result *result;
    bool watched = is_watched(p);
    int ours;
    if (!prepare(p))
        return FAILED;
    result = p->request.result;
    catch_signals();
    if (watched && !watch_begin(p))
        return FAILED;
    nsbox_spawn(&p->request);
    drop_privileges(p);
    bool is_well = !watched || watch_started(p);
    if (result->error && caught())
        die_of(caught());
    if (result->error && is_well)
        fail_spawn(p);
    if (result->error || !is_well)
        return FAILED;
    sys_close(result->init_says);
    sys_close(result->init_pidfd);
    int status = wait_for_command(p, &ours);
    if (watched && !p->has_failed)
        watch_ended(p, status, ours != 0);
    /* A shell that started this process knows then that its user wants to stop. */
    if (ours)
        die_of(ours);
    return status;
}

static bool has_word(const char *const *words, const char *word)
{
    for (; *words; words++)
        if (text_is(*words, word))
            return true;
    return false;
}

static int main_of(struct program *p, const char *const *argv)
{
    int parent = sys_getppid(), before = 0;
    bool is_tied = has_word(argv, "--die-with-parent"); /* before anything that takes time */
    nsbox_bwrap_line *line = &p->line;
    if (is_tied)
        before = tie(parent);
    p->name = *argv ? *argv : "bwrap";
    p->caller.uid = sys_getuid();
    p->caller.gid = sys_getgid();
    if (nsbox_bwrap_parse(line, *argv ? argv + 1 : argv, p->envp, p->caller.uid, p->caller.gid) < 0) {
        no_memory(p);
        return FAILED;
    }
    for (uint64_t i = 0; i < line->n_warnings; i++) {
        say(line->warnings[i]);
        say("\n");
    }
    switch (line->outcome) {
    case NSBOX_BWRAP_REFUSED:
        say(line->message);
        say("\n");
        return FAILED;
    case NSBOX_BWRAP_NO_COMMAND:
        usage(p, 2);
        return FAILED;
    case NSBOX_BWRAP_ASKS_HELP:
        usage(p, 1);
        return p->has_failed;
    case NSBOX_BWRAP_ASKS_VERSION:
        return sys_write(1, "bubblewrap " BWRAP_VERSION "\n", sizeof "bubblewrap " BWRAP_VERSION) < 0;
    default:
        break;
    }
    bool wants_tie = line->flags & NSBOX_BWRAP_DIE_WITH_PARENT;
    if (wants_tie && !is_tied) /* the option was in an --args file */
        tie(parent);
    else if (!wants_tie && is_tied) /* it was an argument of the command */
        sys_prctl(PR_SET_PDEATHSIG, (unsigned long)before, 0);
    return run(p);
}

/* The kernel's words on the stack: argc, argv, NULL, envp, NULL. */
__attribute__((used)) void bwrap_start(long *stack)
{
    static struct program program = {.mark = mark};
    const char *const *argv = (const char *const *)(stack + 1);
    program.envp = argv + stack[0] + 1;
    sys_exit(main_of(&program, argv));
}

ARCH_START_WITH_STACK(bwrap_start);
