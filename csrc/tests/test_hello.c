/* test_hello.c: the first bytes of a TLS client, whole, byte by byte, cut into records, and mangled. */
#include "check.h"
#include "net/hello.h"
#include <string.h>

static uint8_t bytes[HELLO_MOST + 64];
static size_t size;
static char name[HELLO_NAME];

static void put(const void *from, size_t n)
{
    memcpy(bytes + size, from, n);
    size += n;
}

static void put16(size_t value)
{
    const uint8_t two[] = {(uint8_t)(value >> 8), (uint8_t)value};
    put(two, 2);
}

static void set16(size_t at, size_t value)
{
    bytes[at] = (uint8_t)(value >> 8);
    bytes[at + 1] = (uint8_t)value;
}

static size_t begin_extension(size_t type)
{
    put16(type);
    put16(0);
    return size;
}

static void end_extension(size_t from)
{
    set16(from - 2, size - from);
}

static void put_server(const char *host, size_t n, uint8_t type)
{
    size_t from = begin_extension(0);
    put16(n + 3);
    put(&type, 1);
    put16(n);
    put(host, n);
    end_extension(from);
}

/* Lengths of record, message and extensions. */
static void seal(size_t extensions)
{
    set16(extensions - 2, size - extensions);
    set16(3, size - 5);
    set16(7, size - 9);
}

static size_t begin(void)
{
    static const uint8_t head[] = {22, 3, 1, 0, 0, 1, 0, 0, 0, 3, 3}, zeros[33] = {0},
                         rest[] = {0, 2, 0x13, 1, 1, 0, 0, 0};
    size = 0;
    put(head, sizeof head);
    put(zeros, sizeof zeros); /* random, and a session of no bytes */
    put(rest, sizeof rest);
    return size;
}

static void hello(const char *host)
{
    size_t extensions = begin(), other = begin_extension(43);
    put("\2\3\4", 3);
    end_extension(other);
    if (host)
        put_server(host, strlen(host), 0);
    seal(extensions);
}

static size_t used;

static enum hello read_it(void)
{
    return hello_read(bytes, size, name, &used);
}

static void a_name(void)
{
    hello("Api.Example.ORG");
    CHECK(read_it() == HELLO_NAMED && !strcmp(name, "api.example.org"));
    size_t whole = size;
    for (size = 0; size < whole; size++)
        CHECK(read_it() == HELLO_MORE);
    bytes[size++] = 23; /* what comes behind it, such as early data */
    CHECK(read_it() == HELLO_NAMED && used == whole);
    hello(NULL);
    CHECK(read_it() == HELLO_NAMELESS);
}

/* The message in records of so many bytes each. */
static void in_records(size_t each)
{
    uint8_t message[1024];
    size_t n = size - 5;
    memcpy(message, bytes + 5, n);
    size = 0;
    for (size_t at = 0; at < n; at += each) {
        size_t part = n - at < each ? n - at : each;
        const uint8_t head[] = {22, 3, 1, 0, (uint8_t)part};
        put(head, sizeof head);
        put(message + at, part);
    }
}

static void records(void)
{
    for (size_t each = 1; each < 60; each++) {
        hello("api.example.org");
        in_records(each);
        CHECK(read_it() == HELLO_NAMED && !strcmp(name, "api.example.org"));
        size--;
        CHECK(read_it() == HELLO_MORE);
    }
    hello("api.example.org");
    in_records(20);
    bytes[25] = 21; /* an alert between two parts */
    CHECK(read_it() == HELLO_BAD);
    hello("api.example.org");
    in_records(20);
    set16(28, 0); /* a part of no bytes */
    CHECK(read_it() == HELLO_BAD);
}

static void no_tls(void)
{
    static const char *const other[] = {"GET / HTTP/1.1\r\n", "SSH-2.0-x", "\x80\x2e\x01\x03\x01", "\x15\x03\x01",
                                        "\n"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        CHECK(hello_read((const uint8_t *)other[i], strlen(other[i]), name, &used) == HELLO_NO_TLS);
}

static void bad_names(void)
{
    static const struct {
        const char *text;
        size_t size;
    } odd[] = {{"", 0},    {"a\0b", 3}, {"a.example\0", 10}, {"a b", 3}, {"\xc3\xa4.example", 10},
               {"a/b", 3}, {"[::1]", 5}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        size_t extensions = begin();
        put_server(odd[i].text, odd[i].size, 0);
        seal(extensions);
        CHECK(read_it() == HELLO_BAD);
    }
    char longest[254];
    memset(longest, 'a', sizeof longest);
    for (size_t n = 253; n <= 254; n++) {
        size_t extensions = begin();
        put_server(longest, n, 0);
        seal(extensions);
        CHECK(read_it() == (n == 253 ? HELLO_NAMED : HELLO_BAD));
    }
}

static void several(void)
{
    size_t extensions = begin();
    put_server("a.example", 9, 0);
    put_server("b.example", 9, 0);
    seal(extensions);
    CHECK(read_it() == HELLO_BAD);
    extensions = begin();
    size_t from = begin_extension(0); /* two in one list */
    put("\0\x10\0\0\5a.exa\0\0\5b.exa", 18);
    end_extension(from);
    seal(extensions);
    CHECK(read_it() == HELLO_BAD);
    extensions = begin();
    put_server("a.example", 9, 1); /* a type that nobody knows */
    seal(extensions);
    CHECK(read_it() == HELLO_BAD);
}

static void hidden(void)
{
    size_t extensions = begin();
    put_server("front.example", 13, 0);
    end_extension(begin_extension(0xfe0d));
    seal(extensions);
    CHECK(read_it() == HELLO_ECH && !strcmp(name, "front.example"));
}

/* Each length, too long or too short by one: never a name that isn't there, and never the wrong one. */
static void lengths(void)
{
    for (size_t at = 3; at < 90; at++) {
        for (int by = -1; by <= 1; by += 2) {
            hello("a.example");
            if (at >= size)
                return;
            bytes[at] = (uint8_t)(bytes[at] + by);
            enum hello found = read_it();
            CHECK(found != HELLO_NAMED || strlen(name) == 9);
        }
    }
}

/* Another message in the hello's record, which nobody would look at. */
static void not_alone(void)
{
    hello("a.example");
    put("\1\0\0\0", 4);
    set16(3, size - 5);
    CHECK(read_it() == HELLO_BAD);
    size -= 2; /* and if it hasn't come yet */
    CHECK(read_it() == HELLO_BAD);
}

static void too_long(void)
{
    hello("a.example");
    bytes[6] = 1; /* a message of 64 kB */
    CHECK(read_it() == HELLO_BAD);
    hello("a.example");
    bytes[3] = 0x41; /* a record of more than 16 kB */
    CHECK(read_it() == HELLO_BAD);
    hello("a.example");
    bytes[5] = 2; /* a server's */
    CHECK(read_it() == HELLO_BAD);
}

int main(void)
{
    a_name();
    records();
    no_tls();
    bad_names();
    several();
    hidden();
    lengths();
    not_alone();
    too_long();
    uint8_t alert[8];
    CHECK(hello_alert(alert) == 7 && !memcmp(alert, "\x15\3\1\0\2\2\x70", 7));
    fprintf(stderr, "%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
