/* test_ask.c: questions to the caller: asked once, answered once, and no later than after 120 seconds. */
#include "check.h"
#include "relay/connections/connection.h"
#include "relay/base/events.h"
#include <stdlib.h>

/* ---- what ask.c needs */

static int64_t time_now = 1000000;
static int is_over, is_full, n_sent, n_answered;
static enum answer last_answer;

int64_t now(void)
{
    return time_now;
}

int control_is_over(void)
{
    return is_over;
}

int tell_ask(const struct ask *ask)
{
    (void)ask;
    n_sent += !is_full;
    return !is_full;
}

void connections_answered(const struct ask *ask)
{
    n_answered++;
    last_answer = ask->answer;
}

/* ---- */

static struct sandbox one, two;
static uint32_t reason;

static struct ask *about(struct sandbox *sandbox, uint16_t port)
{
    const struct destination to = {NULL, 0xcb007101, port, PROTOCOL_TCP};
    return ask_about(sandbox, &to, &reason);
}

static void once(void)
{
    struct ask *first = about(&one, 80);
    CHECK(first && about(&one, 80) == first && n_sent == 1);
    CHECK(about(&one, 81) != first && about(&two, 80) != first && n_sent == 3);
    ask_answer(first->id, 1);
    CHECK(n_answered == 1 && last_answer == ANSWER_YES && about(&one, 80)->answer == ANSWER_YES);
    ask_answer(first->id, 0); /* the first answer holds */
    ask_answer(12345, 1);
    CHECK(n_answered == 1 && about(&one, 80)->answer == ANSWER_YES && about(&one, 81)->answer == ANSWER_PENDING);
    ask_answer(about(&two, 80)->id, 0);
    CHECK(about(&two, 80)->answer == ANSWER_NO && reason == NSBOX_NET_ASKED);
}

static void no_answer_in_time(void)
{
    struct ask *silent = about(&one, 90);
    asks_tick(time_now + 119999);
    CHECK(silent->answer == ANSWER_PENDING);
    asks_tick(time_now + 120000);
    CHECK(silent->answer == ANSWER_NO && about(&one, 90) == silent && one.n_pending == 0);
}

/* A question that the caller doesn't take is sent again. */
static void a_caller_that_reads_nothing(void)
{
    int before = n_sent;
    is_full = 1;
    struct ask *ask = about(&one, 100);
    asks_tick(time_now);
    CHECK(n_sent == before && ask->answer == ANSWER_PENDING);
    is_full = 0;
    asks_tick(time_now);
    asks_tick(time_now);
    CHECK(n_sent == before + 1);
    ask_answer(ask->id, 1);
}

static void limits(void)
{
    for (uint16_t port = 1000; port < 1064; port++)
        CHECK(about(&two, port));
    CHECK(!about(&two, 1064) && reason == NSBOX_NET_LIMIT && about(&two, 1000) && about(&one, 1064));
    ask_answer(about(&two, 1030)->id, 0);
    CHECK(about(&two, 1064) && !about(&two, 1065));
    for (uint16_t port = 2000; two.n_asks < 4096; port++) {
        struct ask *ask = about(&two, port);
        if (!ask)
            asks_refuse_all();
    }
    asks_refuse_all();
    CHECK(!about(&two, 9) && reason == NSBOX_NET_LIMIT && about(&two, 1000)->answer == ANSWER_NO);
}

static void nobody_to_ask(void)
{
    about(&one, 3000);
    is_over = 1;
    asks_refuse_all();
    CHECK(about(&one, 3000)->answer == ANSWER_NO && !about(&one, 3001) && reason == NSBOX_NET_ASKED);
    CHECK(about(&one, 80)->answer == ANSWER_YES);
    is_over = 0;
}

int main(void)
{
    once();
    no_answer_in_time();
    a_caller_that_reads_nothing();
    limits();
    nobody_to_ask();
    struct ask *pending = about(&one, 4000);
    CHECK(pending && about(&two, 1) == NULL);
    asks_end(&one);
    asks_end(&two);
    asks_tick(INT64_MAX); /* nothing is left of them */
    fprintf(stderr, "%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
