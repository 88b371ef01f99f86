"""nsbox doctor: what works on this machine; and, for an error's text, the cause, a look at this machine, a remedy."""
