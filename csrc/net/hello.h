/* hello.h: which server a TLS client asks for (RFC 8446, RFC 6066). Pure: no system call. */
#ifndef NSBOX_NET_HELLO_H
#define NSBOX_NET_HELLO_H

#include <stddef.h>
#include <stdint.h>

enum { HELLO_MOST = 20480, HELLO_NAME = 256 };

enum hello {
    HELLO_MORE,     /* incomplete so far */
    HELLO_NAMED,    /* names one server */
    HELLO_NAMELESS, /* names none */
    HELLO_ECH,      /* hides the name (draft-ietf-tls-esni, extension 0xfe0d) */
    HELLO_BAD,      /* names two, or something that is no name; or it is mangled or too long */
    HELLO_NO_TLS,
};

/* Read what a client has sent so far. name: the server's in lower case, with HELLO_NAMED; with HELLO_ECH too, or ""
 * if there is none. *used: the size of a complete hello. */
enum hello hello_read(const uint8_t *bytes, size_t size, char name[HELLO_NAME], size_t *used);

/* Write the alert that says that a name isn't known here ("unrecognized_name", fatal); returns its size, 7. */
size_t hello_alert(uint8_t *to);

#endif
