"""A warm interpreter for tests: it loads the library of branches with ctypes, and runs a test's code. Plain stdlib."""

import ctypes
import json
import os
import sys


class Branch(ctypes.Structure):
    _fields_ = (
        ("request", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("image_fd", "lifeline_fd", "pid_fd", "spare", "net_fd", "relay_fd")),
        ("relay_id", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("init_pid", "init_pidfd", "says_fd", "setup_fd", "error", "op")),
        ("step", ctypes.c_uint32),
        ("n_mounts", ctypes.c_uint32),
        ("mounts", ctypes.c_int32 * 16),
        ("detail", ctypes.c_char * 64),
    )


class Failed(Exception):
    """A call of the library failed. error, step, op: as the struct has them."""

    def __init__(self, call, b):
        super().__init__(f"{call}: {os.strerror(b.error)} step {b.step} op {b.op}")
        self.error, self.step, self.op = b.error, b.step, b.op


class Running:
    """A branch that runs a function; its result is JSON in a pipe."""

    def __init__(self, driver, function, net_fd=-1, mounts=(), relay=(-1, 0)):
        self.b = driver.new(net_fd)
        self.b.n_mounts, self.b.relay_fd, self.b.relay_id = len(mounts), *relay
        for i, fd in enumerate(mounts):
            self.b.mounts[i] = fd
        driver.begin(self.b)
        self.pipe, write = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            driver.library.nsbox_branch_end(ctypes.byref(self.b), 0)
            os.close(self.pipe)
            os.close(write)
            raise
        if self.pid == 0:
            os.close(self.pipe)
            self._run(driver, function, write)
        os.close(write)
        ret = driver.library.nsbox_branch_end(ctypes.byref(self.b), 1)
        if ret < 0:
            self.wait()
            raise Failed("end", self.b)

    def _run(self, driver, function, write):
        status = 0
        try:
            ret = driver.library.nsbox_branch_enter(ctypes.byref(self.b))
            if ret < 0:
                answer = {"failed": [self.b.error, self.b.step, self.b.op]}
                status = 127
            else:
                answer = {"value": function()}
        except BaseException as error:
            import traceback

            answer = {"raised": repr(error), "trace": traceback.format_exc()}
            status = 1
        with open(write, "w") as file:
            json.dump(answer, file)
        os._exit(status)

    def wait(self):
        """Return the answer when the branch has ended, and everything of it."""
        with open(self.pipe) as file:
            text = file.read()
        self.status = os.waitpid(self.pid, 0)[1]
        os.waitpid(self.b.init_pid, 0)
        self.last = os.read(self.b.says_fd, 4096) if self.b.says_fd >= 0 else b""
        for fd in (self.b.init_pidfd, self.b.says_fd):
            if fd >= 0:
                os.close(fd)
        return json.loads(text) if text else {"status": self.status}


class Driver:
    """The library, and the request of one policy."""

    def __init__(self, config):
        self.library = ctypes.CDLL(f"/proc/self/fd/{config['library']}")
        data = os.pread(config["blob"], os.fstat(config["blob"]).st_size, 0)
        self.request = ctypes.create_string_buffer(data, len(data))
        base = ctypes.addressof(self.request)
        for at in config["pointers"]:
            word = ctypes.c_uint64.from_buffer(self.request, at)
            word.value += base
        self.image = config["image"]
        self.own = self.lifeline = -1

    def new(self, net_fd=-1):
        return Branch(ctypes.addressof(self.request), self.image, self.lifeline, self.own, 0, net_fd, -1)

    def begin(self, b):
        if self.library.nsbox_branch_begin(ctypes.byref(b)) < 0:
            raise Failed("begin", b)

    def start(self):
        """Go on as the interpreter, in a pid namespace of its own; the first process only waits for its end."""
        self.lifeline = os.pidfd_open(os.getpid())
        b = self.new()
        if self.library.nsbox_branch_look(ctypes.byref(b)) < 0:
            raise Failed("look", b)
        self.begin(b)
        pid = os.fork()
        if pid:
            if self.library.nsbox_branch_end(ctypes.byref(b), 1) < 0:
                raise Failed("end", b)
            status = os.waitpid(pid, 0)[1]
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        for fd in (b.init_pidfd, b.says_fd, b.setup_fd, self.lifeline):
            os.close(fd)
        self.lifeline = os.pidfd_open(os.getpid())
        self.own = os.open("/proc/self/ns/pid", os.O_RDONLY)

    def branch(self, function, net_fd=-1, mounts=(), relay=(-1, 0)):
        """Run a function in a branch; return what it returns."""
        answer = Running(self, function, net_fd, mounts, relay).wait()
        if "value" not in answer:
            raise RuntimeError(json.dumps(answer))
        return answer["value"]


def main():
    config = json.loads(sys.argv[1])
    driver = Driver(config)
    if config["start"]:
        driver.start()
    names = {"driver": driver, "branch": driver.branch, "Running": Running, "Failed": Failed, "os": os, "json": json}
    exec(compile(config["code"], "<test>", "exec"), names)
    print(json.dumps(names.get("result")), flush=True)


if __name__ == "__main__":
    main()
