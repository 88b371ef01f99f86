"""Threads that start commands at the same time, and programs that fork meanwhile: nobody waits for another's command."""

from __future__ import annotations

from nsbox_seatbelt_core.running import Core


def test_threads_start_commands(core: Core) -> None:
    """Each thread gets its own command's outcome, and each command the descriptors that are its own."""
    script = """
        profile = compile_profile("(x)")
        ready, wrong = threading.Barrier(4), []
        def work(number):
            ready.wait()
            for i in range(15):
                mine = os.memfd_create(f"{number}")
                found = start([*SHOW_FDS, str(mine)], profile=profile, pass_fds=[mine], stdio=(DEVNULL, DEVNULL, DEVNULL))
                status = found.status()
                seen = fds_in(os.pread(mine, 1000, 0))
                missing = start(["/no/such"], profile=profile)
                if (status, sorted(seen), missing.step) != (0, [0, 1, 2, mine], "EXEC"):
                    wrong.append([status, sorted(seen), mine, missing.step])
                os.close(mine)
        before = open_fds()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert open_fds() == before
        say(wrong)
    """
    assert core.run(script) == []


def test_a_process_that_is_forked_meanwhile_and_stays(core: Core) -> None:
    """A forked process that never executes anything (multiprocessing) holds up no spawn of another thread.

    It would, if it kept the end of a pipe by whose end the spawn learns that the program has been executed.
    """
    script = """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # forks and threads
        profile = compile_profile("(x)")
        ballast = bytearray(b"x") * (64 << 20)  # that forks take their time, so that they meet
        stay, end = os.pipe()
        done = []
        def work():
            for _ in range(15):
                done.append(start(["/bin/true"], profile=profile).status())
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        forked = []
        while any(thread.is_alive() for thread in threads) and len(forked) < 200:
            pid = os.fork()
            if pid == 0:
                os.close(end)
                os.read(stay, 1)
                # It can start commands itself.
                os._exit(start(["/bin/true"], profile=profile).status())
            forked.append(pid)
        for thread in threads: thread.join()  # with all of them still there
        os.close(end)
        statuses = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in forked}
        say([len(done), sorted(set(done) | statuses), len(forked) > 5])
    """
    assert core.run(script) == [45, [0], True]
