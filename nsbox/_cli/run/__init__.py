"""`nsbox run` and `nsbox shell`: a command in a sandbox, with the caller's terminal, signals and exit status.

command.py hands the command to direct.py or, for a pseudo-terminal, to bridge.py. That forks a second process,
monitor.py; link.py has the messages between the two. job.py handles the command as a shell's job. keys.py and
signals.py have the signals for it, network.py a log and ports of its network; options.py has the options.
"""
