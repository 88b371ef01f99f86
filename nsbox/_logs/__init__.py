"""What others may hear of: the logger nsbox, and observers of commands. Nothing is imported for a program without them.

logger.py has the logger, which exists once somebody may listen. observers.py has the slot for those that hear of each
command's start and end: audit records (_audit) and OpenTelemetry (_otel). _popen/story.py tells them.
"""
