"""What is printed about the subcommands, from their parsers: help, manual pages, the first steps.

page.py makes a Page of a parser, with the text and the examples of prose.py. text.py prints a page on a terminal, in
the colours of style.py; roff.py makes it a manual page. start.py is for a command line without a subcommand, command.py
for `nsbox help`, `man` and `completion`. The shells' completion, in ../completion, is made of the same pages.
"""
