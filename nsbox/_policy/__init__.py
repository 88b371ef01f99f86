"""What a user may wish for: the Policy and its parts. What has to ask the machine is in questions.py alone."""
