/* process.h: the processes of a spawn, and which of them does what, and when.
 */
#ifndef NSBOX_PROCESS_H
#define NSBOX_PROCESS_H

#include "isolation/isolation.h"

/* mediator.c: builds the sandbox, then creates the init and the command, and exits. */
void mediator(void *job);
void plain_command(void *job); /* NSBOX_PLAIN: the command, from its first moment */
int after_op(struct builder *b);

/* command.c */
void command(void *job);
_Noreturn void command_after_preexec(struct job *j, int failed);

/* signals.c */
void default_signals(const struct job *j);
void unblock_signals(const struct job *j);
int death_signal(const struct job *j);
int death_signal_after_preexec(const struct job *j);
int ignores_children(void);
void await_watch(struct job *j);
void watch_command(struct job *j);

/* pid1.c */
int init_start(struct job *j);
int init_is_up(struct job *j);
int init_await(struct job *j);
int init_failed(const struct job *j);
void init_await_leave(struct job *j);
int init_new_proc(struct builder *b);
int open_image(struct builder *b);

/* pidns_below.c. make: clones pid 1 into the namespace for children of the process that calls it. */
typedef long pid1_maker(struct job *j, unsigned long flags, int *out);
int clone_below(struct job *j, unsigned long flags, int *number, pid1_maker *make);

/* kept.c */
int kept_prepare(struct job *j);
int kept_check(struct job *j);
int kept_finish(struct job *j, int32_t *op);
int kept_receive(struct job *j);
void kept_drop(nsbox_result *res);
int park(struct job *j, int32_t *op);

/* end.c */
int is_dead(int pid);
void clean_up(struct job *j);
void hold_init(struct job *j);
void reap(struct sharer *s);
int mediator_killed(int pid);

#endif
