/* http.c: reads heads of requests strictly: if two readers could understand one differently, it is refused. */
#include "http.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HTTP = 80, USER_MOST = 20, SECRET_SIZE = 16 };
enum { AT_SIZE, AT_EXTENSION, AT_SIZE_END, AT_DATA, AT_DATA_CR, AT_DATA_LF, AT_LINE, AT_TRAILER, AT_LAST_LF, AT_END };

static const char TOKEN[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/* ---- whose client asks */

static int sextet(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c ? strchr(digits, c) : NULL;
    return found ? (int)(found - digits) : -1;
}

static size_t decode64(const char *text, size_t size, char *to, size_t room)
{
    size_t n = 0;
    unsigned bits = 0, value = 0;
    while (size && text[size - 1] == '=')
        size--;
    for (size_t i = 0; i < size; i++) {
        int one = sextet(text[i]);
        if (one < 0 || n == room)
            return 0;
        value = (value << 6 | (unsigned)one) & 0xffffff;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            to[n++] = (char)(value >> bits);
        }
    }
    return n;
}

int http_credentials(const char *user, size_t user_size, const char *secret, size_t secret_size, uint64_t found[2])
{
    char text[SECRET_SIZE + 1] = {0};
    found[0] = 0;
    if (!user_size || user_size >= USER_MOST || secret_size != SECRET_SIZE)
        return 0;
    for (size_t i = 0; i < user_size; i++) {
        if (user[i] < '0' || user[i] > '9')
            return 0;
        found[0] = found[0] * 10 + (uint64_t)(user[i] - '0');
    }
    memcpy(text, secret, SECRET_SIZE);
    if (strspn(text, "0123456789abcdef") != SECRET_SIZE)
        return 0;
    found[1] = strtoull(text, NULL, 16);
    return 1;
}

static int read_secret(struct request *to, const char *value, size_t size)
{
    char text[USER_MOST + SECRET_SIZE + 2];
    uint64_t found[2];
    if (size < 6 || strncasecmp(value, "basic ", 6))
        return 0;
    size_t n = decode64(value + 6, size - 6, text, sizeof text);
    const char *colon = n ? memchr(text, ':', n) : NULL;
    if (!colon)
        return 0;
    size_t user = (size_t)(colon - text);
    to->has_secret = http_credentials(text, user, colon + 1, n - user - 1, found);
    to->user = found[0];
    to->secret = found[1];
    return to->has_secret;
}

/* ---- lines */

static int is_named(const char *name, size_t size, const char *other)
{
    return size == strlen(other) && !strncasecmp(name, other, size);
}

static int read_length(struct body *body, const char *value, size_t size)
{
    uint64_t length = 0;
    if (!size || size > 18)
        return 0;
    for (size_t i = 0; i < size; i++) {
        if (value[i] < '0' || value[i] > '9')
            return 0;
        length = length * 10 + (uint64_t)(value[i] - '0');
    }
    body->kind = length ? BODY_LENGTH : BODY_NONE;
    body->left = length;
    return 1;
}

/* The fields that a head has so far. */
struct seen {
    int host, length, coding, secret;
};

/* Read one field. 0 or -STATUS. */
static int read_field(struct request *to, struct seen *seen, const char *line, size_t size)
{
    struct destination host;
    const char *colon = memchr(line, ':', size);
    size_t name = colon ? (size_t)(colon - line) : 0;
    if (!name || strspn(line, TOKEN) < name)
        return -400;
    const char *value = colon + 1;
    size_t length = size - name - 1;
    while (length && (*value == ' ' || *value == '\t')) {
        value++;
        length--;
    }
    while (length && (value[length - 1] == ' ' || value[length - 1] == '\t'))
        length--;
    if (is_named(line, name, "host")) {
        uint16_t port = to->is_connect ? to->to.port : HTTP; /* some leave CONNECT's port out */
        if (seen->host++ || target_authority(&host, value, length, port) < 0)
            return -400;
        return target_is_same(&host, &to->to) ? 0 : -400;
    }
    if (is_named(line, name, "content-length"))
        return seen->length++ || seen->coding || !read_length(&to->body, value, length) ? -400 : 0;
    if (is_named(line, name, "transfer-encoding")) {
        if (seen->coding++ || seen->length)
            return -400;
        to->body = (struct body){.kind = BODY_CHUNKED};
        return is_named(value, length, "chunked") ? 0 : -501;
    }
    if (is_named(line, name, "proxy-authorization"))
        return seen->secret++ || !read_secret(to, value, length) ? -407 : 0;
    return 0;
}

/* METHOD SP TARGET SP HTTP/1.x. 0 or -STATUS. */
static int read_first(struct request *to, const char *line, size_t size)
{
    const char *space = memchr(line, ' ', size);
    if (!space || space == line || strspn(line, TOKEN) < (size_t)(space - line))
        return -400;
    to->method = line;
    to->method_size = (size_t)(space - line);
    to->is_connect = is_named(line, to->method_size, "connect");
    const char *target = space + 1;
    size_t left = size - to->method_size - 1;
    space = memchr(target, ' ', left);
    if (!space || left - (size_t)(space - target) != 9 || strncmp(space + 1, "HTTP/1.", 7))
        return -400;
    if (space[8] != '0' && space[8] != '1')
        return -505;
    left = (size_t)(space - target);
    if (to->is_connect)
        return target_authority(&to->to, target, left, 0) < 0 ? -400 : 0;
    if (left < 7 || strncasecmp(target, "http://", 7))
        return left > 8 && !strncasecmp(target, "https://", 8) ? -501 : -400;
    const char *host = target + 7;
    size_t n = 0;
    while (n < left - 7 && host[n] != '/' && host[n] != '?')
        n++;
    to->path = host + n;
    to->path_size = left - 7 - n;
    return memchr(target, '#', left) || target_authority(&to->to, host, n, HTTP) < 0 ? -400 : 0;
}

/* Returns the end of a line, CRLF; NULL: it hasn't come yet. *is_bad: the line has what no line may have. */
static const char *end_of(const char *bytes, size_t size, int *is_bad)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '\r' && i + 1 == size)
            return NULL;
        if (c == '\r' && bytes[i + 1] == '\n')
            return bytes + i;
        if ((c < ' ' && c != '\t') || c == 127) {
            *is_bad = 1;
            return NULL;
        }
    }
    return NULL;
}

int http_read(struct request *to, const char *bytes, size_t size)
{
    struct seen seen = {0};
    int is_bad = 0, is_first = 1;
    const char *at = bytes, *end;
    *to = (struct request){0};
    while ((end = end_of(at, size - (size_t)(at - bytes), &is_bad))) {
        size_t length = (size_t)(end - at);
        if (!length && !is_first) {
            to->size = (size_t)(end + 2 - bytes);
            return to->has_secret ? 1 : -407;
        }
        int ret = is_first ? read_first(to, at, length) : read_field(to, &seen, at, length);
        if (ret < 0)
            return ret;
        is_first = 0;
        at = end + 2;
    }
    if (is_bad)
        return -400;
    return size < HTTP_HEAD_MOST ? 0 : -431;
}

/* ---- what a server gets */

/* Is it a field between a client and its proxy, or one that we write ourselves? */
static int is_ours(const char *line, size_t size)
{
    static const char *const names[] = {"host",       "connection", "proxy-connection", "proxy-authorization",
                                        "keep-alive", "te",         "upgrade"};
    const char *colon = memchr(line, ':', size);
    size_t name = colon ? (size_t)(colon - line) : size;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_named(line, name, names[i]))
            return 1;
    return 0;
}

struct text {
    char *to;
    size_t size, room;
    int is_full;
};

static void put(struct text *text, const char *bytes, size_t size)
{
    if (size > text->room - text->size) {
        text->is_full = 1;
        return;
    }
    memcpy(text->to + text->size, bytes, size);
    text->size += size;
}

static void put_string(struct text *text, const char *string)
{
    put(text, string, strlen(string));
}

size_t http_rewrite(const struct request *request, const char *bytes, char *to, size_t room)
{
    struct text text = {to, 0, room, 0};
    const char *stop = bytes + request->size - 2, *host = request->path;
    while (strncmp(host - 2, "//", 2))
        host--;
    put(&text, request->method, request->method_size);
    put_string(&text, request->path_size && *request->path == '/' ? " " : " /");
    put(&text, request->path, request->path_size);
    put_string(&text, " HTTP/1.1\r\nHost: ");
    put(&text, host, (size_t)(request->path - host));
    put_string(&text, "\r\nConnection: close\r\n");
    const char *at = memchr(bytes, '\n', request->size);
    for (at++; at < stop;) {
        const char *end = (const char *)memchr(at, '\n', (size_t)(stop - at)) + 1;
        if (!is_ours(at, (size_t)(end - at)))
            put(&text, at, (size_t)(end - at));
        at = end;
    }
    put_string(&text, "\r\n");
    return text.is_full ? 0 : text.size;
}

/* ---- bodies */

static int digit16(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Read one byte between the chunks (RFC 9112, 7.1); 0: it is mangled. */
static int step(struct body *body, char c)
{
    int digit = digit16(c);
    switch (body->place) {
    case AT_SIZE:
        if (digit >= 0) {
            body->left = body->left << 4 | (uint64_t)digit;
            return ++body->count <= 15;
        }
        if (!body->count || (c != ';' && c != '\r'))
            return 0;
        body->place = c == ';' ? AT_EXTENSION : AT_SIZE_END;
        body->count = 0;
        return 1;
    case AT_EXTENSION:
        if (c == '\r')
            body->place = AT_SIZE_END;
        return c != '\n' && ++body->count < 1024;
    case AT_SIZE_END:
        body->place = body->left ? AT_DATA : AT_LINE;
        body->count = 0;
        return c == '\n';
    case AT_DATA_CR:
        body->place = AT_DATA_LF;
        return c == '\r';
    case AT_DATA_LF:
        body->place = AT_SIZE;
        return c == '\n';
    case AT_LINE: /* of trailers, or the last */
        body->place = c == '\r' ? AT_LAST_LF : AT_TRAILER;
        return c != '\n';
    case AT_TRAILER:
        if (c == '\n')
            body->place = AT_LINE;
        return ++body->count < HTTP_HEAD_MOST;
    default:
        body->place = AT_END;
        return c == '\n';
    }
}

ssize_t body_take(struct body *body, const char *bytes, size_t size)
{
    size_t at = 0;
    while (at < size && !body_is_over(body)) {
        int is_data = body->kind == BODY_LENGTH || body->place == AT_DATA;
        if (!is_data && !step(body, bytes[at++]))
            return -1;
        if (!is_data)
            continue;
        size_t part = size - at < body->left ? size - at : (size_t)body->left;
        body->left -= part;
        at += part;
        if (body->kind == BODY_CHUNKED && !body->left)
            body->place = AT_DATA_CR;
    }
    return (ssize_t)at;
}

int body_is_over(const struct body *body)
{
    return body->kind == BODY_NONE || (body->kind == BODY_LENGTH ? !body->left : body->place == AT_END);
}
