/* test_hosts.c: lines of hosts(5). */
#include "check.h"
#include "net/hosts.h"

int main(void)
{
    static const char *const has[] = {
        "192.0.2.1 corp",         "192.0.2.1\tother\tCorp\n",   "  2001:db8::1  corp # mine",
        "192.0.2.1 corp#comment", "192.0.2.1 a b c d corp e\n", "192.0.2.1 corp\r\n"};
    static const char *const has_not[] = {"",
                                          "\n",
                                          "corp",
                                          "corp 192.0.2.1",
                                          "#192.0.2.1 corp",
                                          "192.0.2.1 # corp",
                                          "192.0.2.1 corp.example",
                                          "192.0.2.1 a.corp xcorp corpx",
                                          "192.0.2.1 other#corp",
                                          "192.0.2.1"};
    for (size_t i = 0; i < sizeof has / sizeof *has; i++)
        CHECK(hosts_line_has(has[i], "corp"));
    for (size_t i = 0; i < sizeof has_not / sizeof *has_not; i++)
        CHECK(!hosts_line_has(has_not[i], "corp"));
    CHECK(!hosts_line_has("192.0.2.1 corp", ""));
    fprintf(stderr, "%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
