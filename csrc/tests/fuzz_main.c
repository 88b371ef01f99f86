/* fuzz_main.c: a driver for the fuzz target where there is no libFuzzer: fuzz_main ROUNDS FILE...
 *
 * Runs the target on each file, and on ROUNDS variants of each with a few bytes, words or its end changed. Always the
 * same ones: the generator has a fixed seed.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 16 };

static uint64_t state = 0x9e3779b97f4a7c15;

/* xorshift64* */
static uint32_t draw(uint32_t below)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * 0x2545f4914f6cdd1d) >> 33) % below;
}

/* Numbers at which bounds break: small ones, those around the size, and those around 2^32. */
static uint32_t number(uint32_t size)
{
    static const uint32_t bases[] = {0, 16, 56, 0x1000, 0x80000000, 0xffffffff};
    uint32_t pick = draw(8);
    if (pick == 6)
        return draw(size + 16);
    uint32_t base = pick == 7 ? size : bases[pick];
    return base + draw(8) - 4;
}

static size_t vary(uint8_t *bytes, size_t size)
{
    for (uint32_t n = 1 + draw(4); n > 0 && size > 0; n--) {
        uint32_t how = draw(8);
        if (how == 0) {
            size = draw((uint32_t)size + 1);
        } else if (how < 3) {
            bytes[draw((uint32_t)size)] = (uint8_t)draw(256);
        } else if (size >= 4) {
            uint32_t value = number((uint32_t)size);
            memcpy(bytes + draw((uint32_t)size / 4) * 4, &value, 4);
        }
    }
    return size;
}

static int run(const char *path, long rounds)
{
    static uint8_t seed[MOST], bytes[MOST];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 1;
    }
    size_t size = fread(seed, 1, sizeof seed, file);
    fclose(file);
    LLVMFuzzerTestOneInput(seed, size);
    for (long i = 0; i < rounds; i++) {
        memcpy(bytes, seed, size);
        LLVMFuzzerTestOneInput(bytes, vary(bytes, size));
    }
    return 0;
}

int main(int argc, char **argv)
{
    int status = argc < 3;
    for (int i = 2; i < argc; i++)
        status |= run(argv[i], atol(argv[1]));
    return status;
}
