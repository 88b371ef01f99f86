"""macOS's proxy of network lists, on Linux: what it connects to and what it refuses, by each way to ask it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from nsbox_testing import needs

Client = Callable[..., list[str]]


def test_ways(client: Client) -> None:
    """CONNECT, SOCKS5 by name and by address, and a plain request: what is listed works, with half-close."""
    code = """
proxy = Proxy("a.example:80", "203.0.113.1:5432", "localhost:8000", "six.example:443", tls="off")
for to in ("a.example:80", "A.Example.:80", "203.0.113.1:5432", "localhost:8000", "127.0.0.1:8000", "six.example:443"):
    print(*(echo(s).decode() if status == good else status
            for good, (status, s) in ((200, proxy.tunnel(to)), (0, proxy.socks(to)))))
print(echo(proxy.socks("203.0.113.1:5432", kind=1)[1]).decode(), echo(proxy.socks("127.0.0.1:8000", kind=1)[1]).decode())
print(proxy.told()[0])
proxy.events = []
big = os.urandom(5_000_000)
status, s = proxy.tunnel("a.example:80")
sender = threading.Thread(target=lambda: (s.sendall(big), s.shutdown(socket.SHUT_WR)))
sender.start()
print(rest(s, len(big)) == big, rest(s))
print([(e.sent, e.received) for e in (proxy.settle(), proxy.events)[1] if e.kind == "close"])
"""
    found = client(code)
    a, local = "203.0.113.1 hi", "127.0.0.1 hi"
    assert found[:6] == [f"{a} {a}"] * 3 + [f"{local} {local}"] * 2 + ["2001:db8::1 hi 2001:db8::1 hi"]
    assert found[6] == f"{a} {local}"
    assert found[7] == "connect a.example:80 allowed"
    assert found[8] == "True b''" and found[9] == "[(5000000, 5000000)]"


def test_refused(client: Client) -> None:
    """What isn't listed, is denied, or leads to addresses that no name may have: 403, and "not allowed" in SOCKS5."""
    code = """
proxy = Proxy("*:*", "!b.example", "!two.example:9001", "time.example:123/udp")
names = ("b.example:80", "two.example:9001", "metadata.example:443", "lan.example:443", "rebound.example:8000")
for to in (*names, "own.example:8001"):
    print(to, proxy.tunnel(to)[0], proxy.socks(to)[0], set(proxy.told()))
for address in ("10.1.2.3", "169.254.169.254", "192.0.2.1", "127.0.0.1", "127.0.0.2", "0.0.0.0", "198.18.1.1", "224.0.0.1"):
    print(address, proxy.tunnel(f"{address}:8001")[0], proxy.socks(f"{address}:8001", kind=1)[0])
print(proxy.tunnel("[::1]:8001")[0], proxy.socks("::1:8001", kind=4)[0], proxy.socks("::ffff:127.0.0.1:8001", kind=4)[0])
print(proxy.tunnel("localhost:8001")[0])
for text in ("127.1:8001", "2130706433:8001", "0x7f000001:8001", "0x7f.1:8001", "127.0.0.01:8001", "1.2.3.4.5:80", "a..b:80"):
    print(text, proxy.tunnel(text)[0], proxy.socks(text)[0])
proxy.told()
proxy.change("203.0.113.1:80", "10.1.2.0/24:443", "lan.example:443", "metadata.example:443", private=True, tls="off")
print(*(proxy.tunnel(to)[0] for to in ("203.0.113.1:80", "203.0.113.2:22", "lan.example:443", "metadata.example:443")))
proxy.told()
proxy.change("192.0.2.0/24:8001", "203.0.113.0/24:80")  # this host has one of the first, and no more of the second
print(proxy.tunnel("203.0.113.1:80")[0], proxy.tunnel("192.0.2.1:8001")[0],
      *(text for text in proxy.told() if "refused" in text and not text.startswith("close")))
proxy.change("192.0.2.1:8001")
print(echo(proxy.tunnel("192.0.2.1:8001")[1]))
"""
    found = client(code)
    reasons = ["denied", "denied", "address", "address", "own-address", "own-address"]
    for line, reason in zip(found[:6], reasons, strict=True):
        to = line.split()[0]
        name = to if reason == "denied" else line.split("connect ")[1].split(" refused")[0]
        assert line == f"{to} 403 2 {{'connect {name} refused {reason}'}}"
    assert [line.split()[1:] for line in found[6:14]] == [["403", "2"]] * 8
    assert found[14:16] == ["403 2 2", "403"]
    assert [line.split()[1:] for line in found[16:23]] == [["400", "1"]] * 7
    assert found[23] == "200 403 200 403"
    assert found[24:] == ["200 403 connect 192.0.2.1:8001 refused own-address", "b'192.0.2.1 hi'"]


def test_servers_that_fail(client: Client) -> None:
    """The answer is the true one: refused, unreachable, no such name, reset."""
    code = """
proxy = Proxy("*:*", tls="off")
for to in ("down.example:80", "nowhere.example:80", "unknown.example:80"):
    print(to, proxy.tunnel(to)[0], proxy.socks(to)[0], sorted({(e.kind, e.verdict, e.errno) for e in (proxy.settle(), proxy.events)[1]}))
    proxy.events = []
print(echo(proxy.tunnel("two.example:80")[1]).decode())  # its first address is silent
status, s = proxy.tunnel("a.example:9001")
s.sendall(b"x")
print(rest(s))
status, s = proxy.tunnel("a.example:9003")
s.sendall(b"x")
print(len(rest(s)))
"""
    found = client(code)
    assert found[0] == "down.example:80 502 5 [('connect', 'failed', 111)]"
    assert found[1] == "nowhere.example:80 502 4 [('connect', 'failed', 113)]"
    assert found[2] == "unknown.example:80 502 4 [('dns', 'failed', 0)]"
    assert found[3:] == ["203.0.113.1 hi", "b'RESET'", str(1 << 20)]


def test_secret(client: Client) -> None:
    """Nobody without the secret gets anything, by any way; another sandbox's is its own, and ends with it."""
    code = """
proxy = Proxy("a.example:80")
wrong = "0" * 16
auths = ("", proxy.auth(secret=wrong), proxy.auth(user="2"), proxy.auth("1", "x"), "Proxy-Authorization: Basic !\\r\\n",
         "Proxy-Authorization: Bearer x\\r\\n", proxy.auth() * 2, proxy.auth(user="0" * 30))
print(*(proxy.tunnel("a.example:80", auth=auth)[0] for auth in auths))
print(proxy.say("GET http://a.example/ HTTP/1.1\\r\\nHost: a.example\\r\\n\\r\\n"))
print(proxy.socks("a.example:80", secret=wrong)[0], proxy.socks("a.example:80", methods=b"\\0\\1")[0])
other = proxy.process.admit(2)["http_proxy"].split("@")[0].split(":")[-1]
print(other != proxy.secret, proxy.tunnel("a.example:80", auth=proxy.auth("1", other))[0])
status, s = proxy.tunnel("a.example:80", auth=proxy.auth("2", other))
s.sendall(b"hi")
print(status, rest(s, 14))
proxy.process.release(2)
print([e.sandbox for e in (proxy.settle(), proxy.events)[1]])
print(rest(s), proxy.tunnel("a.example:80", auth=proxy.auth("2", other))[0], proxy.tunnel("a.example:80")[0])
"""
    found = client(code)
    assert found[:3] == [" ".join(["407"] * 8), "407", "secret method"]
    assert found[3:5] == ["True 407", "200 b'203.0.113.1 hi'"]
    assert found[5] in ("[2]", "[2, 2]") and found[6] == "b'' 407 200"


def test_server_names(client: Client) -> None:
    """At port 443 by name the hello has to name the server; elsewhere if it is TLS; by address nobody looks."""
    code = """
proxy = Proxy("a.example:443", "a.example:80", "203.0.113.1:443")
def tried(to, *parts):
    status, s = proxy.tunnel(to)
    try:
        for part in parts:
            s.sendall(part)
        s.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it has ended already
    found = rest(s)
    return "alert" if found[:1] == b"\\x15" else "passed" if parts[0][:3] in found else found
right, wrong, none = hello("a.example"), hello("b.example"), hello(None)
print(tried("a.example:443", right), tried("a.example:443", wrong), tried("a.example:443", none), tried("a.example:443", b"GET /"))
print(proxy.told())
print(tried("a.example:443", *(right[i:i+1] for i in range(len(right)))), tried("a.example:443", right[:50]))
print(tried("a.example:80", wrong), tried("a.example:80", b"GET /"), tried("a.example:80", right), tried("203.0.113.1:443", wrong))
print(proxy.tunnel("a.example:443")[1].recv(0), proxy.say("GET http://a.example:443/ HTTP/1.1\\r\\nHost: a.example:443\\r\\nAUTH\\r\\n\\r\\n"))
proxy.change("a.example:443", tls="off")
print(tried("a.example:443", wrong), tried("a.example:443", b"GET /"))
"""
    found = client(code)
    assert found[0] == "passed alert alert b'RESET'"
    told = found[1]
    assert "close a.example:443 refused sni b.example" in told and "close a.example:443 refused no-tls" in told
    assert found[2] == "passed b'RESET'"
    assert found[3] == "alert passed passed passed" and found[4] == "b'' 403" and found[5] == "passed passed"


def test_plain_requests(client: Client) -> None:
    """A plain request is for one server: it gets a head of our own, and no second request goes the same way."""
    code = """
proxy = Proxy("a.example:80", "a.example:5432", "localhost:8000")
def asked(text, more=b""):
    with proxy.connect() as s:
        s.sendall(text.replace("AUTH\\r\\n", proxy.auth()).encode() + more)
        time.sleep(0.05)
        s.shutdown(socket.SHUT_WR)
        return rest(s)
print(asked("GET http://a.example/x?y HTTP/1.1\\r\\nhost: A.example:80\\r\\nX: 1\\r\\nProxy-Connection: keep-alive\\r\\nConnection: X\\r\\nAUTH\\r\\n\\r\\n"))
print(asked("POST http://a.example:5432 HTTP/1.0\\r\\nContent-Length: 3\\r\\nAUTH\\r\\n\\r\\n", b"abcGET http://b.example/ HTTP/1.1\\r\\n\\r\\n"))
print(asked("PUT http://localhost:8000/p HTTP/1.1\\r\\nTransfer-Encoding: chunked\\r\\nAUTH\\r\\n\\r\\n", b"3\\r\\nabc\\r\\n0\\r\\n\\r\\nGET / HTTP/1.1\\r\\n"))
print(proxy.told()[0])
print(asked("GET http://b.example/ HTTP/1.1\\r\\nHost: b.example\\r\\nAUTH\\r\\n\\r\\n")[:12])
"""
    found = client(code)
    assert found[0] == str(b"203.0.113.1 GET /x?y HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nX: 1\r\n\r\n")
    assert found[1].endswith("Content-Length: 3\\r\\n\\r\\nabc'") and "POST / HTTP/1.1" in found[1]
    assert found[2].endswith("\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\n\\r\\n'")
    assert found[3] == "connect a.example:80 allowed" and found[4] == "b'HTTP/1.1 403'"


def test_mangled(client: Client) -> None:
    """What is mangled, too large, or can be read in two ways is refused; the proxy goes on."""
    code = """
proxy = Proxy("a.example:80")
first = "GET http://a.example/ HTTP/1.1\\r\\n"
for text in (
    first + "Host: b.example\\r\\nAUTH\\r\\n", first + "Host: a.example\\r\\nHost: a.example\\r\\nAUTH\\r\\n",
    first + "Content-Length: 1\\r\\nTransfer-Encoding: chunked\\r\\nAUTH\\r\\n",
    first + "Content-Length: 1\\r\\nContent-Length: 2\\r\\nAUTH\\r\\n", first + "Content-Length: -1\\r\\nAUTH\\r\\n",
    first + "X : 1\\r\\nAUTH\\r\\n", first + "X: 1\\n Y: 2\\r\\nAUTH\\r\\n", first + " folded\\r\\nAUTH\\r\\n",
    first + "X: \\0\\r\\nAUTH\\r\\n", "GET / HTTP/1.1\\r\\nAUTH\\r\\n", "GET http://a.example@b.example/ HTTP/1.1\\r\\nAUTH\\r\\n",
    "CONNECT a.example HTTP/1.1\\r\\nAUTH\\r\\n", "CONNECT a.example:0 HTTP/1.1\\r\\nAUTH\\r\\n",
    "CONNECT a.example:65536 HTTP/1.1\\r\\nAUTH\\r\\n", "CONNECT a.example:80 HTTP/1.1\\r\\nHost: b.example:80\\r\\nAUTH\\r\\n",
    "CONNECT a.example\\t:80 HTTP/1.1\\r\\nAUTH\\r\\n", "GET http://a.example/ HTTP/2.0\\r\\nAUTH\\r\\n",
    first.replace("1.1", "1.9") + "AUTH\\r\\n", "GET https://a.example/ HTTP/1.1\\r\\nAUTH\\r\\n",
    first + "Transfer-Encoding: gzip, chunked\\r\\nAUTH\\r\\n", first + "X: " + "x" * 40000 + "\\r\\nAUTH\\r\\n",
):
    print(proxy.say(text + "\\r\\n"), end=" ")
print()
for raw in (b"\\4\\1\\0\\x50\\0\\0\\0\\1x\\0", b"\\5\\0", b"\\5\\1\\2\\5\\5", b"\\x16\\3\\1", b"\\r\\n\\r\\n", b"\\0" * 70000):
    with proxy.connect() as s:
        try:
            s.sendall(raw)
            s.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        print(rest(s)[:8].startswith((b"HTTP/1.1", b"\\5\\xff", b"\\5\\2", b"RESET", b"")), end=" ")
print()
print(proxy.socks("a.example:80", command=2)[0], proxy.socks("a.example:80", command=3)[0], proxy.socks("a.example:80", kind=9)[0])
print(echo(proxy.tunnel("a.example:80")[1]))
"""
    found = client(code)
    assert found[0].split() == ["400"] * 16 + ["505" if i else "400" for i in range(2)] + ["501", "501", "431"]
    assert found[1].split() == ["True"] * 6
    assert found[2:] == ["7 7 8", "b'203.0.113.1 hi'"]


def test_limits(client: Client) -> None:
    """Connections and bytes of a sandbox; strangers don't crowd out who is known, nor do slow clients."""
    code = """
proxy = Proxy("a.example:80", connections=3)
held = [proxy.tunnel("a.example:80") for _ in range(3)]
print([status for status, _ in held], proxy.tunnel("a.example:80")[0], proxy.socks("a.example:80")[0], proxy.told()[-1])
held.pop()[1].close()
proxy.settle()
strangers = [proxy.connect() for _ in range(300)]
for s in strangers[::2]:
    s.sendall(b"CONNECT a.exa")
status, s = proxy.tunnel("a.example:80")
print(status, echo(s))
proxy.change("a.example:80", bytes=100_000)
status, s = proxy.tunnel("a.example:80")
def send():
    try:
        s.sendall(bytes(10_000_000))
    except OSError:
        pass
threading.Thread(target=send, daemon=True).start()
print(len(rest(s)) < 5_000_000, "limit" in str(proxy.told()))
print(proxy.tunnel("a.example:80")[0])
proxy = Proxy("a.example:9002")  # its server never reads
status, s = proxy.tunnel("a.example:9002")
s.setblocking(False)
sent = 0
try:
    for _ in range(10_000):
        sent += s.send(bytes(65536))
except BlockingIOError:
    pass
print(status, sent < 100_000_000)
"""
    found = client(code)
    assert found[0] == "[200, 200, 200] 503 1 connect a.example:80 refused limit"
    assert found[1:] == ["200 b'203.0.113.1 hi'", "True True", "503", "200 True"]


def test_asked_and_changed(client: Client) -> None:
    """What no entry decides is asked once; another list ends what it doesn't allow, and a yes stays a yes."""
    code = """
proxy = Proxy("a.example:80", "!down.example", asks=True, answer=lambda event: event.name != "b.example")
print(*(proxy.tunnel(to)[0] for to in ("c.a.example:80", "c.a.example:80", "b.example:80", "b.example:80", "down.example:80")))
print(proxy.socks("203.0.113.1:5432", kind=1)[0], proxy.tunnel("lan.example:443")[0], proxy.tunnel("10.1.2.3:443")[0])
print(proxy.asked)
kept, ended = proxy.tunnel("c.a.example:80")[1], proxy.tunnel("a.example:80")[1]
proxy.told()
proxy.change("203.0.113.2:22", "!a.example:80")
print(rest(ended), *(text for text in proxy.told() if "refused" in text), echo(kept))
try:
    proxy.process._ask(2, b"nonsense", "change it")
except Exception as error:
    print(error)
print(proxy.tunnel("203.0.113.2:22")[0])
"""
    found = client(code)
    assert found[0] == "200 200 403 403 403" and found[1] == "0 403 403"
    assert found[2] == "['c.a.example:80', 'b.example:80', '203.0.113.1:5432', 'lan.example:443']"
    assert found[3] == "b'RESET' close a.example:80 refused denied b'203.0.113.1 hi'"
    assert found[4].startswith("network list: change it: Invalid argument") and found[5] == "200"


def test_the_callers_end(client: Client) -> None:
    """The proxy ends with its caller, and with it all connections; nothing is left of it."""
    code = """
def proxies():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = open(f"/proc/{pid}/stat").read()
        except OSError:
            continue
        if "(nsbox-proxy)" in text and ") Z" not in text:
            found.append(int(pid))
    return found
proxy = Proxy("a.example:80")
status, s = proxy.tunnel("a.example:80")
print(status, len(proxies()), proxy.process.is_running())
fds = sorted(os.listdir(f"/proc/{proxies()[0]}/fd"), key=int)
print(os.readlink(f"/proc/{proxies()[0]}/fd/0"), len(fds), open(f"/proc/{proxies()[0]}/environ").read() == "")
pid = os.fork()
if pid == 0:
    proxy.process.forget()
    os._exit(0)
os.waitpid(pid, 0)
print(proxy.process.is_running(), proxy.tunnel("a.example:80")[0])
proxy.process.close()
print(rest(s), proxy.process.is_running())
for _ in range(500):
    if not proxies():
        break
    time.sleep(0.01)
print(proxies())
proxy = Proxy("a.example:80")
os.kill(proxies()[0], signal.SIGKILL)
for _ in range(500):
    if not proxy.process.is_running():
        break
    time.sleep(0.01)
try:
    proxy.process.change(proxy.blob(("a.example:80",), {}))
except Exception as error:
    print(type(error).__name__, error)
"""
    found = client(code)
    assert found[0] == "200 1 True"
    assert found[1].startswith("/dev/null ") and found[1].endswith(" True")
    assert found[2:5] == ["True 200", "b'' False", "[]"] and found[5].startswith("SetupError network list: change it")


@pytest.mark.parametrize("way", ["http", "socks5h"])
def test_curl(client: Client, way: str) -> None:
    """curl by the variables alone and by SOCKS5: TLS with the right name works; what isn't listed is refused."""
    for program in ("curl", "openssl", "nsenter"):
        needs.require(program)
    code = f"""
os.chdir(directory)
subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "cert", "-subj",
                "/CN=ssh.example", "-addext", "subjectAltName=DNS:ssh.example"], check=True, capture_output=True)
command = ["nsenter", "-t", os.environ["INTERNET"], "-n", "openssl", "s_server", "-accept", "203.0.113.2:443", "-www",
           "-key", "key", "-cert", "cert"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
while "ACCEPT" not in server.stdout.readline():
    pass
proxy = Proxy("ssh.example:443", "a.example:80", "localhost:8100")
variables = proxy.variables if {way!r} == "http" else {{"all_proxy": proxy.url.replace("http:", "socks5h:")}}
web = subprocess.Popen([sys.executable, "-m", "http.server", "-b", "127.0.0.1", "8100"],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while True:
    try:
        socket.create_connection(("127.0.0.1", 8100)).close()
        break
    except OSError:
        time.sleep(0.02)
def curl(*words):
    done = subprocess.run(["curl", "-sS", "--cacert", "cert", *words], env=variables | {{"PATH": os.environ["PATH"]}},
                          capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr.strip()
found = curl("https://ssh.example/")
print(found[0], "New, TLSv1.3" in found[1] or "TLSv1.3" in found[1], found[2])
print(curl("http://localhost:8100/names")[1].startswith("127.0.0.1 localhost"))
print(curl("-T", "names", "http://localhost:8100/x")[1].count("501") > 0)
for url in ("https://b.example/", "http://b.example/x", "https://ssh.example:444/"):
    status, text, error = curl("-f", url)
    print(status, text)
print(curl("--connect-to", "a.example:443:ssh.example:443", "-k", "https://a.example/")[0])
server.kill()
web.kill()
"""
    found = client(code)
    assert found[:3] == ["0 True ", "True", "True"]
    refused = {"http": {"22 ", "56 "}, "socks5h": {"97 "}}[way]  # curl's version decides
    assert set(found[3:6]) <= refused
    assert found[6] == "35"  # a hello for another name
