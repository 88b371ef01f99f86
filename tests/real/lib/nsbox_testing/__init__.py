"""What the tests with real children share: a look at what a test left behind, system calls, faults on purpose."""
