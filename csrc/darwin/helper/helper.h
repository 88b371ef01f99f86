/* helper.h: what our helper program and the processes that execute it agree on.
 *
 * helper apply REPORT_FD PROFILE_FD helper watch CALLER COMMAND [group | all]
 *
 * Its environment is empty: what its loader would obey (DYLD_INSERT_LIBRARIES) is for the command, in the sandbox.
 *
 * "apply" confines itself and becomes the command. The file PROFILE_FD says how, from its start on, whatever the
 * shared offset is. It holds strings, each of which ends in NUL: "nsbox 1"; then four lists, each a decimal count and
 * so many strings: the profile with its parameters (text, key, value, ...), the programs in the order in which they
 * are tried, the arguments, the environment. Nothing follows. What becomes of it is reported by REPORT_FD.
 *
 * "watch" kills COMMAND, and with "group" or "all" its process group, when CALLER ends, and ends with either; with
 * "all" the rest of the process group is killed when COMMAND ends, whichever process waits for that. When it watches,
 * it says so by a report without an error through descriptor 1; after that there is nothing more to say.
 */
#ifndef NSBOX_HELPER_H
#define NSBOX_HELPER_H

#include <stdint.h>

#define HELPER_APPLY "apply"
#define HELPER_WATCH "watch"
#define HELPER_GROUP "group"
#define HELPER_ALL "all"
#define HELPER_MAGIC "nsbox 1"

/* A report through a pipe to the caller. error 0: the process is confined, and whatever ends it from now on is the
 * command's own affair. Then the pipe ends with the exec, or another report follows. */
struct report {
    int32_t error;
    uint32_t step; /* enum nsbox_step */
};

/* Sends a report: 0 or -errno. Safe between fork and exec, like all functions here. */
int report_send(int fd, int error, uint32_t step);

/* Returns the number of bytes: a report's size, 0 at the pipe's end, or fewer if the sender was killed. Or -errno. */
int report_receive(int fd, struct report *r);

/* Tries one after another, and returns the first error that says more than "not here", as execvp(3) does: -errno. */
int execute(const char *const *programs, const char *const *argv, const char *const *envp);

/* 0 or -errno. */
int set_cloexec(int fd, int yes);

#endif
