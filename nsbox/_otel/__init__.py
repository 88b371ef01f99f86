"""OpenTelemetry: a span for each command, and metrics. nsbox.otel is the face.

names.py has the names of attributes and instruments, with their sources. observer.py hears of commands, and makes spans
and measurements of them. It imports the API of OpenTelemetry alone: what becomes of spans is up to the program.
"""
