/* seatbelt.h: libsandbox, as the rest of the core uses it. Python's calls are in calls.h. */
#ifndef NSBOX_SEATBELT_H
#define NSBOX_SEATBELT_H

/* Confines this process for good, by a compiled profile. 0 or -errno. Safe between fork and exec. */
int seatbelt_apply(const void *profile);

/* The same with a profile's text. params: key, value, ..., NULL. It compiles the text: only for a separate program. */
int seatbelt_init(const char *profile, const char *const *params);

#endif
