/* images.h: what the build puts into this library: the programs of pid 1, the library
 * of branches, and the table of system calls. */
#ifndef NSBOX_IMAGES_H
#define NSBOX_IMAGES_H

extern const char nsbox_syscall_table[];
extern const unsigned char nsbox_init_image[];
extern const unsigned int nsbox_init_image_len;
extern const unsigned char nsbox_session_image[];
extern const unsigned int nsbox_session_image_len;
extern const unsigned char nsbox_branch_image[];
extern const unsigned int nsbox_branch_image_len;

#endif
