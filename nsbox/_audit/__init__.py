"""Audit records: what ran and what was refused, a line of JSON each. nsbox.audit is the face.

record.py makes the records, of commands and of what else observers hear. policies.py tells policies apart, and sums
them up. redaction.py masks secrets, line.py turns a record into a line that nothing in it can break. schema.py says
what a record has.

trail.py hears of commands and hands records to the logger nsbox.audit. sinks.py has the handlers' side: the file, and
what happens if a record can't be written.
"""
