"""The program inside a warm interpreter, which is forked for each piece of code; standard library alone.

It runs under whatever Python a policy has, 3.9 or later, and without nsbox. archive.py packs it, and boot.py unpacks it
there under another name. So it imports nothing of nsbox except itself, by relative imports.
"""
