"""`nsbox python`: a program in a branch of a warm interpreter, or a prompt with a kernel behind it.

options.py has the options, command.py what they mean. program.py runs one program as `python -c` would. prompt.py is
what a user at a terminal sees; history.py keeps what was typed there, display.py shows results and saves images.
"""
