"""Handles of tool calls that go on while their caller does something else: streams and jobs, also for coroutines."""
