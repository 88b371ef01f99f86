/* self.c: the calling process in the kernel's eyes: its death signal, its securebits; and what the kernel offers it. */
#include "calls.h"
#include "kernel/sys.h"

int nsbox_securebits(void)
{
    return sys_prctl(PR_GET_SECUREBITS, 0, 0);
}

int nsbox_landlock_abi(void)
{
    return sys_landlock_create_ruleset(0, 0, 1 /* LANDLOCK_CREATE_RULESET_VERSION */);
}
