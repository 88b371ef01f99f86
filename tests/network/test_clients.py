"""Real clients under a network list: each sees what it sees outside, with the host's network, in the same world.

Nobody has told them of a proxy. For each there are five situations: what is listed works; a server that is down, or behind
no route, fails as it does outside; a name that isn't listed is as unknown as one that isn't there; a port that isn't listed
is as closed as one on which nobody listens.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from nsbox_clients import LISTED, PYTHON, Outcome, World
from nsbox_testing import needs

IS_THOROUGH = bool(os.environ.get("NSBOX_THOROUGH"))
SSH = (
    "ssh -F none -i identity -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no "
    "-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=20"
)
URLLIB = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except OSError as error:
    sys.exit(str(getattr(error, "reason", error)))
"""
ASYNCIO = """
import asyncio, ssl, sys
async def main():
    context = ssl.create_default_context(cafile="ca.pem")
    reader, writer = await asyncio.open_connection(sys.argv[1], int(sys.argv[2]), ssl=context)
    writer.write(b"GET /hello HTTP/1.0\\r\\n\\r\\n")
    print((await reader.read()).decode()[-6:])
    writer.close()
try:
    asyncio.run(asyncio.wait_for(main(), 20))
except OSError as error:
    sys.exit(f"{type(error).__name__} {error.errno}")
"""
REDIS = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) as connection:
        connection.sendall(b"PING\\r\\n")
        print(connection.recv(100).decode())
except OSError as error:
    sys.exit(f"{type(error).__name__} {error.errno}")
"""
NTP = """
import socket, sys
try:
    found = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), socket.AF_INET, socket.SOCK_DGRAM)[0][4]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(20)
        connection.connect(found)
        connection.send(bytes([0x23]) + bytes(47))
        answer = connection.recv(100)
        print(len(answer), answer[0] & 7)
except OSError as error:
    sys.exit(f"{type(error).__name__} {error.errno}")
"""
NODE_FETCH = """
fetch(process.argv[1]).then(found => found.text()).then(console.log).catch(error => {
    console.log(String(error), (error.cause || {}).code, (error.cause || {}).syscall); process.exit(1); });
"""
NODE_HTTPS = """
require("https").get(process.argv[1], answer => answer.pipe(process.stdout)).on("error", error => {
    console.log(error.code, error.syscall); process.exit(1); });
"""
NODE_HTTP2 = """
const session = require("http2").connect(process.argv[1]);
session.on("error", error => { console.log(error.code, error.syscall); process.exit(1); });
const stream = session.request({ ":path": "/" });
stream.on("error", () => 0).on("end", () => session.close()).pipe(process.stdout);
"""
NODE_DNS = """
const dns = require("dns"), host = process.argv[1];
const kinds = { lookup: done => dns.lookup(host, done), all: done => dns.lookup(host, { all: true, family: 4 }, done),
    resolve4: done => dns.resolve4(host, done), resolve6: done => dns.resolve6(host, done),
    txt: done => dns.resolveTxt(host, done), mx: done => dns.resolveMx(host, done) };
(async () => { for (const kind in kinds)
    await new Promise(next => kinds[kind]((error, found) => { console.log(kind, error ? error.code : "found"); next(); }));
})();
"""


def code(text: str) -> str:
    """Return an argument of shell."""
    return shlex.quote(text)


# A name, the programs that it needs, the line (HOST and PORT stand for them), the port, another where the same server listens.
CLIENTS = {
    "curl-http": (["curl"], "curl -sS --max-time 30 http://HOST:PORT/hello", 80, 81),
    "curl-https": (["curl"], "curl -sS --max-time 30 --cacert ca.pem https://HOST:PORT/hello", 443, 444),
    "curl-post": (
        ["curl"],
        "head -c 300000 /dev/zero | curl -sS --max-time 30 --cacert ca.pem --data-binary @- https://HOST:PORT/hello"
        " && echo hello",
        *(443, 444),
    ),
    "wget-http": (["wget"], "wget -q -O - -T 20 -t 1 http://HOST:PORT/hello || exit $?", 80, 81),
    "wget-https": (["wget"], "wget -nv -O - -T 20 -t 1 --ca-certificate=ca.pem https://HOST:PORT/hello", 443, 444),
    "git-https": (
        ["git"],
        "cd $(mktemp -d ./XXXXXX) && git -c http.sslCAInfo=../ca.pem clone -q https://HOST:PORT/repository got && cat got/hello",
        *(443, 444),
    ),
    "git-ssh": (
        ["git", "ssh", "dropbear"],
        f"GIT_SSH_COMMAND='{SSH}' git ls-remote ssh://git@HOST:PORT/~/repository && echo hello",
        *(22, 222),
    ),
    "ssh": (["ssh", "dropbear"], f"{SSH} -p PORT git@HOST echo hello", 22, 222),
    "urllib": ([], f"SSL_CERT_FILE=ca.pem {PYTHON} -Sc {code(URLLIB)} https://HOST:PORT/hello", 443, 444),
    "asyncio": ([], f"{PYTHON} -Sc {code(ASYNCIO)} HOST PORT && echo hello", 443, 444),
    "redis": ([], f"{PYTHON} -Sc {code(REDIS)} HOST PORT && echo hello", 6379, 6380),
    "bash": (["bash"], "bash -c 'exec 3<>/dev/tcp/HOST/PORT && echo x >&3 && head -c5 <&3' && echo hello", 6379, 6380),
    "node-fetch": (
        ["node"],
        f"NODE_EXTRA_CA_CERTS=ca.pem node -e {code(NODE_FETCH)} https://HOST:PORT/hello",
        *(443, 444),
    ),
    "node-https": (
        ["node"],
        f"NODE_EXTRA_CA_CERTS=ca.pem node -e {code(NODE_HTTPS)} https://HOST:PORT/hello",
        *(443, 444),
    ),
    "npm": (
        ["npm"],
        "npm view hello dist-tags --fetch-retries=0 --cafile=ca.pem --registry=https://HOST:PORT/npm/ --loglevel=error"
        " --cache=$(mktemp -d ./XXXXXX) --logs-max=0 --update-notifier=false && echo hello",
        *(443, 444),
    ),
    "pip": (
        [],
        f"got=$(mktemp -d ./XXXXXX); PIP_CONFIG_FILE=/dev/null {PYTHON} -m pip download -q --retries 0 --no-deps --cert ca.pem"
        " --no-cache-dir -d $got -i https://HOST:PORT/simple hello && ls $got",
        *(443, 444),
    ),
    "psql": (["psql"], "psql -At 'host=HOST port=PORT user=git dbname=a connect_timeout=20' -c 'select 1'", 5432, 5433),
    "busybox-wget": (["busybox"], "busybox wget -q -O - http://HOST:PORT/hello", 80, 81),
    "busybox-nc": (["busybox"], "echo | busybox nc -w 20 HOST PORT | grep PONG && echo hello", 6379, 6380),
    "http2": (
        ["curl", "node"],
        "curl -sS --http2 -w ' %{http_version}' --max-time 30 --cacert ca.pem https://HOST:PORT/hello",
        *(8443, 444),
    ),
    "node-http2": (["node"], f"NODE_EXTRA_CA_CERTS=ca.pem node -e {code(NODE_HTTP2)} https://HOST:PORT", 8443, 444),
    "ntp": ([], f"{PYTHON} -Sc {code(NTP)} HOST PORT && echo hello", 123, 124),
}
MORE = {"curl-post", "wget-http", "node-https", "node-http2", "redis", "busybox-nc"}  # of what others have had
SLOW = {"npm", "pip"}  # a second and more for each


def pairs(line: str, port: int, other: int, *, quickly: bool = False) -> dict[str, tuple[str, str]]:
    """Return for each situation the line inside and the line outside that has to see the same."""

    def at(host: str, number: int = port) -> str:
        return line.replace("HOST", f"{host}.example").replace("PORT", str(number))

    found = {
        "works": (at("web"), at("web")),
        "unknown": (at("hidden"), at("missing")),
        "port": (at("web", other), at("down", other)),
        "down": (at("down"), at("down")),
        "nowhere": (at("nowhere"), at("nowhere")),
    }
    return {name: found[name] for name in ("works", "unknown")} if quickly else found


def compare(world: World, found: dict[str, tuple[str, str]]) -> dict[str, tuple[Outcome, Outcome]]:
    """Run each pair: under the list, and on the host's network. All that can be told apart is an error."""
    lines = [request for inside, outside in found.values() for request in ((inside, LISTED), (outside, None))]
    outcomes = world.run(*lines)
    both = dict(zip(found, zip(outcomes[::2], outcomes[1::2], strict=True), strict=True))
    assert not any(outcome.late for outcome in outcomes), both
    differences = {name: pair for name, pair in both.items() if pair[0].like() != pair[1].like()}
    assert not differences
    return both


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client(world: World, name: str) -> None:
    """It sees inside what it sees outside, in each situation; and what is said of each failure is its reason."""
    if name in MORE and not IS_THOROUGH:
        pytest.skip("much like another: NSBOX_THOROUGH=1 has it")
    programs, line, port, other = CLIENTS[name]
    for program in programs:
        needs.require(program)
    both = compare(world, pairs(line, port, other, quickly=name in SLOW and not IS_THOROUGH))
    for situation, (inside, outside) in both.items():
        works = inside.status == 0 and "hello" in inside.text
        assert works == (situation == "works"), (situation, inside, outside)
    check_hints(both, port, other)


def check_hints(both: dict[str, tuple[Outcome, Outcome]], port: int, other: int) -> None:
    """What is said of each failure is the reason of it, and nothing is said of what works."""
    udp = "/udp" if port == 123 else ""
    wanted = {
        "unknown": "hidden.example isn't in network= (",
        "port": f"web.example:{other}{udp}: only ",
        "down": f"down.example:{port}{udp} refused the connection; network= allows it",
        "nowhere": f"nowhere.example:{port}{udp} can't be reached from this host (No route to host); network= allows it",
    }
    for situation, (inside, _) in both.items():
        said = [message for kind, message in inside.hints if kind == "network"]
        if situation == "works":
            assert inside.hints == []
        else:
            assert len(said) == 1 and said[0].startswith(wanted[situation]), (situation, inside.hints)


LINES = {
    "final-dot": "curl -sS http://web.example./hello; curl -sS --cacert ca.pem https://web.example./hello",
    "capitals": "curl -sS --cacert ca.pem https://WEB.Example/hello",
    "four-and-six": "curl -4sS http://web.example/hello; curl -6sS http://web.example/hello",
    "old-tls": "curl -sS --tls-max 1.2 --cacert ca.pem https://web.example/hello",
    "connection-kept": "curl -sS --cacert ca.pem https://web.example/hello https://web.example/hello https://web.example/hello",
    "at-once": "seq -f 'url=http://web.example/hello?%g' 60 | curl -s -Z --parallel-max 30 -K - 2>/dev/null | sort | uniq -c",
    "download": "curl -sS --cacert ca.pem https://web.example/large | cksum",
    "localhost": "curl -sS http://localhost:8002/; curl -sS 'http://[::1]:8002/'; curl -sS http://127.0.0.1:8002/",
    "no-name": "curl -sS http://not_there.example/; curl -sS http://b\u00fccher.example/; curl -sS http://a..example/",
}


def test_lines(world: World) -> None:
    """What else people do with curl is inside as it is outside."""
    needs.require("curl")
    outcomes = world.run(*((line, entries) for line in LINES.values() for entries in (LISTED, None)))
    both = dict(zip(LINES, zip(outcomes[::2], outcomes[1::2], strict=True), strict=True))
    assert {name: pair for name, pair in both.items() if pair[0].like() != pair[1].like()} == {}
    assert "60 hello" in both["at-once"][0].text


PROGRAM = """
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG}, *found;
    int error = argc == 3 ? getaddrinfo(argv[1], argv[2], &hints, &found) : -1;
    if (error)
        return printf("%s\\n", gai_strerror(error)), 1;
    int fd = socket(found->ai_family, found->ai_socktype, 0);
    if (connect(fd, found->ai_addr, found->ai_addrlen) < 0)
        return printf("%s\\n", strerror(errno)), 1;
    char text[100] = {0};
    return write(fd, "x", 1) < 0 || read(fd, text, 99) < 5 || printf("hello %s\\n", text) < 0;
}
"""
JAVA = """
import java.io.*; import java.net.*; import java.nio.file.*; import java.security.*; import java.security.cert.*; import javax.net.ssl.*;
class Ask {
    public static void main(String[] args) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null);
        store.setCertificateEntry("a", CertificateFactory.getInstance("X.509").generateCertificate(new FileInputStream("ca.pem")));
        TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        try {
            HttpsURLConnection door = (HttpsURLConnection) new URL("https://" + args[0] + ":" + args[1] + "/hello").openConnection();
            door.setSSLSocketFactory(context.getSocketFactory());
            System.out.println(new String(door.getInputStream().readAllBytes()));
        } catch (IOException error) {
            System.out.println(error);
            System.exit(1);
        }
    }
}
"""
GO = """
package main

import (
    "crypto/tls"
    "crypto/x509"
    "fmt"
    "net"
    "os"
)

func main() {
    text, _ := os.ReadFile("ca.pem")
    roots := x509.NewCertPool()
    roots.AppendCertsFromPEM(text)
    door, err := tls.Dial("tcp", net.JoinHostPort(os.Args[1], os.Args[2]), &tls.Config{RootCAs: roots, ServerName: os.Args[1]})
    if err != nil {
        fmt.Println(err)
        os.Exit(1)
    }
    fmt.Fprintf(door, "GET /hello HTTP/1.0\\r\\n\\r\\n")
    buffer := make([]byte, 1000)
    for size, err := door.Read(buffer); err == nil; size, err = door.Read(buffer) {
        fmt.Print(string(buffer[:size]))
    }
}
"""
COMPILERS = {
    "glibc": ("cc", PROGRAM, "c", "cc -o {out} {source}", "./program-glibc HOST PORT", 6379, 6380),
    "musl": ("musl-gcc", PROGRAM, "c", "musl-gcc -static -o {out} {source}", "./program-musl HOST PORT", 6379, 6380),
    "java": (
        "javac",
        JAVA,
        "java",
        "javac -d {out} {source}",
        "java -XX:TieredStopAtLevel=1 -cp program-java Ask HOST PORT",
        443,
        444,
    ),
    "go": ("go", GO, "go", "go build -o {out} {source}", "./program-go HOST PORT", 443, 444),
}


@pytest.mark.parametrize("name", COMPILERS)
def test_a_program(world: World, name: str, tmp_path: Path) -> None:
    """So does a program without a resolver of the C library's: static ones of musl and Go, and one in Java."""
    compiler, text, suffix, build, line, port, other = COMPILERS[name]
    needs.require(compiler)
    if name == "go" and not IS_THOROUGH:
        pytest.skip("half a minute to compile: NSBOX_THOROUGH=1 has it")
    source, out = tmp_path / f"program.{suffix}", world.workspace / f"program-{name}"
    source.write_text(text)
    subprocess.run(
        build.format(out=shlex.quote(str(out)), source=shlex.quote(str(source))),
        shell=True,
        check=True,
        env=os.environ | {"CGO_ENABLED": "0", "GOCACHE": str(tmp_path / "cache"), "GOPATH": str(tmp_path / "go")},
    )
    both = compare(world, pairs(line, port, other))
    for situation, (inside, outside) in both.items():
        assert (inside.status == 0 and "hello" in inside.text) == (situation == "works"), (situation, inside, outside)
    check_hints(both, port, other)


RESOLVERS = {
    "getent": (["getent"], "getent ahostsv4 HOST | tr -s ' '"),
    "dig": (["dig"], "dig HOST | grep -o 'status: [A-Z]*\\|ANSWER: .'; dig +short HOST"),
    "dig-types": (["dig"], "for kind in AAAA TXT MX; do dig $kind HOST | grep -o 'status: [A-Z]*\\|ANSWER: .'; done"),
    "host": (["host"], "host HOST"),
    "nslookup": (["nslookup"], "nslookup HOST"),
    "busybox": (["busybox"], "busybox nslookup HOST | sort"),
    "node": (["node"], f"node -e {code(NODE_DNS)} HOST"),
    "python": ([], f"{PYTHON} -c {code('import socket, sys; print(socket.gethostbyname(sys.argv[1]))')} HOST"),
}


@pytest.mark.parametrize("name", RESOLVERS)
def test_a_resolver(world: World, name: str) -> None:
    """What looks names up by itself sees of each the same: it is there, or it isn't."""
    programs, line = RESOLVERS[name]
    for program in programs:
        needs.require(program)
    found = pairs(line, 0, 0)
    both = compare(world, {which: found[which] for which in ("works", "unknown", "nowhere")})
    assert both["works"][0].text != both["unknown"][0].text
    assert not both["works"][0].hints


def test_a_name_server(world: World) -> None:
    """A listed name server is asked as one is outside; one that isn't listed refuses at once."""
    needs.require("dig")
    line = "dig +tries=1 +timeout=5 +noall +answer +comments @SERVER web.example | grep -v ^$ | sed 's/, id.*//'"
    listed, unlisted = line.replace("SERVER", "203.0.113.53"), line.replace("SERVER", "203.0.113.1")
    inside, outside, other = world.run((listed, LISTED), (listed, None), (unlisted, LISTED))
    assert inside.like() == outside.like()
    assert "203.0.113.4" in inside.text
    assert "connection refused" in other.text
