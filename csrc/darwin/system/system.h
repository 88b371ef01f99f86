/* system.h: what differs between macOS and Linux, on which the tests run. No other file here knows which of them it
 * is on. */
#ifndef NSBOX_SYSTEM_H
#define NSBOX_SYSTEM_H

#ifndef __APPLE__
#define _GNU_SOURCE /* the C library's functions, in spite of -std=c11; macOS's headers show theirs */
#endif

#include <stddef.h>
#include <stdint.h>

/* The type of setrlimit(2)'s first argument. */
#ifdef __APPLE__
typedef int limit_name;
#else
typedef unsigned limit_name;
#endif

#ifdef __APPLE__
#pragma clang diagnostic ignored "-Wdeprecated-declarations" /* vfork(2): see lifeline.c */
#endif

/* setgroups(2), for a process whose group is to be `gid`. */
int system_set_groups(uint32_t gid, const uint32_t *groups, uint32_t n);

/* Not a file on macOS: it is in the loader's cache of libraries, where dlopen(3) finds it. The tests' build has a
 * path of its own here. It is never an environment variable: with one, a command's caller would decide what confines
 * the command. */
#ifndef NSBOX_LIBSANDBOX
#define NSBOX_LIBSANDBOX "/usr/lib/libsandbox.1.dylib"
#endif

/* Descriptors that stay open: an ascending array, and two more, each may be -1. */
struct kept {
    const int32_t *fds;
    uint32_t n;
    int more[2];
};

/* Closes all others from 3 up. `space` is for a list of them. Safe between fork and exec. */
void system_close(const struct kept *kept, void *space, size_t size);

/* Two processes that are watched. */
struct watch {
    int fds[2];
    int pids[2];
};
enum { WATCH_CALLER = 1, WATCH_COMMAND = 2 };

/* Returns those of the two that are gone already, or -errno. From then on it means the processes themselves, not
 * later ones with their numbers. */
int system_watch(struct watch *w, int caller, int command);

/* Waits until one is gone, and returns all that are gone by then. */
int system_await(const struct watch *w);

#endif
