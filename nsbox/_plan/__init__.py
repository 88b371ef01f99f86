"""What a plan can say: its ops, the host that it is for, and the same in Landlock's, Seatbelt's and bubblewrap's words.

Pure: a plan for any machine can be made and read on any other.
"""
