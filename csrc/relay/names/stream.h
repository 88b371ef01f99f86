/* stream.h: questions by TCP, one at a time, each after its length (RFC 1035, 4.2.2). */
#ifndef NSBOX_RELAY_STREAM_H
#define NSBOX_RELAY_STREAM_H

#include "relay/base/relay.h"

enum { STREAM_LENGTH = 2 };

struct stream {
    struct source source;
    struct sandbox *sandbox;
    uint8_t bytes[STREAM_LENGTH + DNS_MOST];
    size_t size;
    int64_t used;
    int is_busy; /* its question is being looked up */
    int is_over; /* it is freed once it isn't busy */
    struct stream *next, **link;
};

void stream_send(struct stream *stream, const uint8_t *answer, size_t size);
void stream_pause(struct stream *stream);
void stream_resume(struct stream *stream);

/* answer.c: answer a question, at once or later: to a client of UDP, or by a stream. */
void answer_question(struct sandbox *sandbox, const uint8_t *bytes, size_t size, const struct sockaddr_in *client,
                     struct stream *stream);

#endif
