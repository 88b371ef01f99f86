/* socks.c: messages of a SOCKS5 client; each says how long it is. */
#include "http.h"
#include "socks.h"

enum { VERSION = 5, VERSION_OF_SECRET = 1, BY_SECRET = 2, CONNECT = 1, IPV4 = 1, NAME = 3, IPV6 = 4 };

ssize_t socks_greeting(const uint8_t *bytes, size_t size, int *can_authenticate)
{
    *can_authenticate = 0;
    if (size && bytes[0] != VERSION)
        return -1;
    if (size < 2 || size < 2 + (size_t)bytes[1])
        return 0;
    for (size_t i = 0; i < bytes[1]; i++)
        *can_authenticate |= bytes[2 + i] == BY_SECRET;
    return 2 + (ssize_t)bytes[1];
}

ssize_t socks_secret(const uint8_t *bytes, size_t size, uint64_t found[2], int *is_one)
{
    if (size && bytes[0] != VERSION_OF_SECRET)
        return -1;
    if (size < 2 || size < 3 + (size_t)bytes[1])
        return 0;
    size_t user = bytes[1], secret = bytes[2 + user];
    if (size < 3 + user + secret)
        return 0;
    *is_one = http_credentials((const char *)bytes + 2, user, (const char *)bytes + 3 + user, secret, found);
    return (ssize_t)(3 + user + secret);
}

ssize_t socks_request(const uint8_t *bytes, size_t size, struct destination *to)
{
    enum { HEAD = 4, PORT = 2 };
    if (size && bytes[0] != VERSION)
        return -SOCKS_FAILED;
    if (size < HEAD + 1)
        return 0;
    size_t host = bytes[3] == IPV4 ? 4 : bytes[3] == IPV6 ? 16 : bytes[3] == NAME ? 1 + (size_t)bytes[4] : 0;
    if (bytes[2] || !host)
        return host ? -SOCKS_FAILED : -SOCKS_ADDRESS;
    if (size < HEAD + host + PORT)
        return 0;
    if (bytes[1] != CONNECT)
        return -SOCKS_COMMAND;
    *to = (struct destination){.port = (uint16_t)(bytes[HEAD + host] << 8 | bytes[HEAD + host + 1])};
    if (!to->port)
        return -SOCKS_FAILED;
    if (bytes[3] == IPV4)
        target_four(to, bytes + HEAD);
    else if (bytes[3] == IPV6)
        to->kind = TO_OTHER;
    else if (target_host(to, (const char *)bytes + HEAD + 1, host - 1) < 0)
        return -SOCKS_FAILED;
    return (ssize_t)(HEAD + host + PORT);
}
