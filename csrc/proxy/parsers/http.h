/* http.h: what a client of an HTTP proxy asks for (RFC 9110, RFC 9112). Pure. */
#ifndef NSBOX_PROXY_HTTP_H
#define NSBOX_PROXY_HTTP_H

#include "target.h"
#include <sys/types.h>

enum { HTTP_HEAD_MOST = 32768 };

/* How a body ends, and how much of it has come. */
enum body_kind { BODY_NONE, BODY_LENGTH, BODY_CHUNKED };
struct body {
    enum body_kind kind;
    uint64_t left;  /* BODY_LENGTH; of BODY_CHUNKED: of the chunk */
    int place;      /* in a chunk: see http.c */
    unsigned count; /* bytes of a line */
};

struct request {
    int is_connect;
    struct destination to;
    uint64_t user, secret; /* if has_secret */
    int has_secret;
    struct body body;
    size_t size;               /* of the head */
    const char *method, *path; /* in the head, with their sizes */
    size_t method_size, path_size;
};

/* Read a head. 0: it isn't complete yet; 1: it is; or -STATUS, the answer: -400, -407, -431, -501, -505. */
int http_read(struct request *to, const char *bytes, size_t size);

/* Write the head that a server gets, unless it is CONNECT's; returns its size, or 0: `room` is too small. */
size_t http_rewrite(const struct request *request, const char *bytes, char *to, size_t room);

/* Read a sandbox's number (decimal) and its secret (sixteen hexadecimal digits). 1; or 0 if they aren't. */
int http_credentials(const char *user, size_t user_size, const char *secret, size_t secret_size, uint64_t found[2]);

/* Returns how many of these bytes belong to the body; -1: it is mangled. */
ssize_t body_take(struct body *body, const char *bytes, size_t size);
int body_is_over(const struct body *body);

#endif
