"""The known symptoms, by where they show: a machine refuses a sandbox, a command fails, nsbox can't be installed."""
