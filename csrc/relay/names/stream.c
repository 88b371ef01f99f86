/* stream.c: clients that ask for names by TCP. */
#include "stream.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { MOST_STREAMS = 64, IDLE = 10 * SECOND };

static void stream_end(struct stream *stream)
{
    if (stream->is_over)
        return;
    loop_close(&stream->source);
    stream->is_over = 1;
    stream->sandbox->n_streams--;
    *stream->link = stream->next;
    if (stream->next)
        stream->next->link = stream->link;
    if (!stream->is_busy)
        later_free(stream);
}

void stream_send(struct stream *stream, const uint8_t *answer, size_t size)
{
    uint8_t bytes[STREAM_LENGTH + DNS_MOST] = {(uint8_t)(size >> 8), (uint8_t)size};
    memcpy(bytes + STREAM_LENGTH, answer, size);
    size += STREAM_LENGTH;
    if (send(stream->source.fd, bytes, size, MSG_NOSIGNAL) != (ssize_t)size)
        stream_end(stream); /* a client that doesn't accept so little has gone */
}

/* Answer the questions until one has to wait. */
static void serve(struct stream *stream)
{
    while (stream->size >= STREAM_LENGTH && !stream->is_busy && !stream->is_over) {
        uint8_t question[DNS_MOST];
        size_t length = (size_t)(stream->bytes[0] << 8 | stream->bytes[1]), whole = STREAM_LENGTH + length;
        if (length > DNS_MOST)
            stream_end(stream);
        if (length > DNS_MOST || stream->size < whole)
            return;
        memcpy(question, stream->bytes + STREAM_LENGTH, length);
        stream->size -= whole;
        memmove(stream->bytes, stream->bytes + whole, stream->size);
        answer_question(stream->sandbox, question, length, NULL, stream);
    }
}

void stream_pause(struct stream *stream)
{
    stream->is_busy = 1;
    loop_change(&stream->source, 0);
}

void stream_resume(struct stream *stream)
{
    stream->is_busy = 0;
    if (stream->is_over) {
        later_free(stream);
        return;
    }
    loop_change(&stream->source, EPOLLIN);
    serve(stream);
}

static void on_stream(struct source *source, uint32_t events)
{
    struct stream *stream = (struct stream *)(void *)source;
    ssize_t n = recv(source->fd, stream->bytes + stream->size, sizeof stream->bytes - stream->size, 0);
    if (events & (EPOLLERR | EPOLLHUP) || n == 0 || (n < 0 && errno != EAGAIN)) {
        stream_end(stream);
        return;
    }
    stream->used = now();
    stream->size += n < 0 ? 0 : (size_t)n;
    serve(stream);
}

void streams_tick(struct sandbox *sandbox, int64_t time)
{
    for (struct stream *stream = sandbox->streams, *next; stream; stream = next) {
        next = stream->next;
        if (time - stream->used > IDLE && !stream->is_busy)
            stream_end(stream);
    }
}

void streams_end(struct sandbox *sandbox)
{
    while (sandbox->streams)
        stream_end(sandbox->streams);
}

void on_dns_tcp(struct source *source, uint32_t events)
{
    struct sandbox *sandbox = (struct sandbox *)(void *)((char *)source - offsetof(struct sandbox, dns_tcp));
    (void)events;
    int fd = accept4(source->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
        sandbox->is_dns_paused = 1; /* epoll(7) would report what waits again and again */
        loop_change(source, 0);
    }
    struct stream *stream = fd < 0 || sandbox->n_streams == MOST_STREAMS ? NULL : calloc(1, sizeof *stream);
    if (!stream) {
        if (fd >= 0)
            close(fd);
        return;
    }
    *stream = (struct stream){
        .source = {on_stream, fd, sandbox}, .sandbox = sandbox, .used = now(), .next = sandbox->streams};
    stream->link = &sandbox->streams;
    if (stream->next)
        stream->next->link = &stream->next;
    sandbox->streams = stream;
    sandbox->n_streams++;
    if (loop_add(&stream->source, EPOLLIN) < 0)
        stream_end(stream);
}

void streams_resume(struct sandbox *sandbox)
{
    if (!sandbox->is_dns_paused)
        return;
    sandbox->is_dns_paused = 0;
    loop_change(&sandbox->dns_tcp, EPOLLIN);
}
