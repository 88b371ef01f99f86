/* calls.h: what Python can ask of the C core on macOS, besides what abi.h has for every system. cffi reads it too. */
#ifndef NSBOX_CALLS_H
#define NSBOX_CALLS_H

#include "abi.h"

/* The ways in which libsandbox lets a profile be applied here. */
enum nsbox_way {
    NSBOX_WAY_COMPILED = 1, /* compiled by the caller, applied by the command between fork and exec */
    NSBOX_WAY_INIT = 2      /* both at once, by the helper program: compiling isn't safe between fork and exec */
};

/* Returns the ways that exist here, bits of nsbox_way. */
int nsbox_seatbelt_ways(void);

/* Is this process in a sandbox? 1, 0, or -ENOSYS if that can't be found out. A process in a sandbox can't have
 * another. */
int nsbox_seatbelt_confined(void);

/* Compiles a profile for nsbox_request. params: key, value, ..., NULL. Returns NULL on failure, with libsandbox's
 * error in `message`, cut to `size` bytes with its NUL. Safe from any thread. */
void *nsbox_seatbelt_compile(const char *profile, const char *const *params, char *message, uint64_t size);
void nsbox_seatbelt_free(void *profile);

/* Has this child ended? It isn't reaped. `block`: wait until it has. 1, 0 or -errno. */
int nsbox_has_ended(int pid, int block);

#endif
