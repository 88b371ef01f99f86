/* images.c: what the build has put into this library: the programs of pid 1, the library of
 * branches, and the table of system calls. */
#include "calls.h"
#include "job/images.h"

const uint8_t *nsbox_init_bytes(void)
{
    return nsbox_init_image;
}

uint64_t nsbox_init_size(void)
{
    return nsbox_init_image_len;
}

const uint8_t *nsbox_session_bytes(void)
{
    return nsbox_session_image;
}

uint64_t nsbox_session_size(void)
{
    return nsbox_session_image_len;
}

const uint8_t *nsbox_branch_bytes(void)
{
    return nsbox_branch_image;
}

uint64_t nsbox_branch_size(void)
{
    return nsbox_branch_image_len;
}

const char *nsbox_syscalls(void)
{
    return nsbox_syscall_table;
}
