/* fuzz_proxy.c: what macOS's proxy reads from a client: requests, SOCKS5, bodies, hellos. For libFuzzer, or with
 * fuzz_main.c. The first byte of an input says which of them it is.
 */
#include "proxy/parsers/http.h"
#include "proxy/parsers/socks.h"
#include "proxy/parsers/watch.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int holds)
{
    if (!holds)
        abort();
}

static void check_target(const struct destination *to)
{
    must(to->port != 0);
    must(to->kind != TO_NAME || (to->name[0] && strlen(to->name) <= 253));
    must(strspn(to->name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == strlen(to->name));
}

/* A complete head is complete whatever follows it, and what is written from it is a head again. */
static void a_request(const char *bytes, size_t size)
{
    static char written[HTTP_HEAD_MOST * 2];
    struct request request, again;
    if (http_read(&request, bytes, size) <= 0)
        return;
    check_target(&request.to);
    must(request.size <= size && http_read(&again, bytes, request.size) == 1 && again.size == request.size);
    must(http_read(&again, bytes, request.size - 1) <= 0);
    if (request.is_connect)
        return;
    size_t n = http_rewrite(&request, bytes, written, sizeof written);
    must(n > 4 && n < sizeof written && !memcmp(written + n - 4, "\r\n\r\n", 4));
    written[n] = 0;
    must(!strcasestr(written, "\nProxy-Authorization:")); /* as a line of its own: it may be within another's value */
}

static void a_body(const char *bytes, size_t size)
{
    struct body whole = {.kind = BODY_CHUNKED}, parts = whole;
    ssize_t n = body_take(&whole, bytes, size), sum = 0;
    must(n <= (ssize_t)size);
    for (size_t i = 0; i < size && sum >= 0 && !body_is_over(&parts); i++)
        sum = body_take(&parts, bytes + i, 1) < 0 ? -1 : sum + 1;
    must(sum == n && (n < 0 || body_is_over(&whole) == body_is_over(&parts)));
}

static void a_socks_client(const uint8_t *bytes, size_t size)
{
    struct destination to = {0};
    uint64_t found[2];
    int is_one;
    must(socks_greeting(bytes, size, &is_one) <= (ssize_t)size);
    must(socks_secret(bytes, size, found, &is_one) <= (ssize_t)size);
    ssize_t n = socks_request(bytes, size, &to);
    must(n <= (ssize_t)size);
    if (n > 0)
        check_target(&to);
}

static void a_tls_client(const uint8_t *bytes, size_t size)
{
    struct watch watch = {.port = 443};
    uint32_t reason = 0;
    size_t half = size / 2, n = watch_client(&watch, "a.example", bytes, half, &reason);
    must(n <= half);
    if (!reason) {
        watch_server(&watch, bytes, size);
        must(watch_client(&watch, "a.example", bytes + n, size - n, &reason) <= size - n);
    }
    must(watch.state == WATCH_HELLO || watch.state == WATCH_OVER || !strcmp(watch.sni, "a.example") || reason);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    uint8_t *copy = malloc(size); /* so that a read behind the end is noticed */
    must(copy != NULL);
    memcpy(copy, data + 1, size - 1);
    switch (data[0] % 4) {
    case 0:
        a_request((const char *)copy, size - 1);
        break;
    case 1:
        a_body((const char *)copy, size - 1);
        break;
    case 2:
        a_socks_client(copy, size - 1);
        break;
    default:
        a_tls_client(copy, size - 1);
    }
    free(copy);
    return 0;
}
