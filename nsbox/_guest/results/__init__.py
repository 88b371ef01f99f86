"""What a reply says of code that has run: values, exceptions, and what was displayed; all bounded."""
