"""The checks, one session each: `nox`, or `nox -s lint`. `.ci/run` runs them all on a bare machine."""

import nox

nox.options.sessions = ["lint", "types", "imports", "c", "tests"]
nox.options.error_on_missing_interpreters = False


@nox.session
def tests(session: nox.Session) -> None:
    """Install the package as a user does, and run the tests; arguments go to pytest."""
    session.install(".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Python and C, style and form."""
    session.install("ruff", "clang-format==14.0.6")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    files = session.run("git", "ls-files", "csrc/*.c", "csrc/*.h", external=True, silent=True)
    session.run("clang-format", "--dry-run", "-Werror", *str(files).split())


@nox.session
def types(session: nox.Session) -> None:
    """Static types."""
    session.install("mypy", "cffi", "psutil", "types-cffi", "types-psutil")
    session.run("mypy")


@nox.session
def imports(session: nox.Session) -> None:
    """Floors of the package: who may import whom."""
    session.install("import-linter", "cffi", "psutil")
    session.run("lint-imports")


@nox.session
def site(session: nox.Session) -> None:
    """The documentation site, built strictly into build/site and opened in a browser."""
    session.run(".ci/site", "build/site", external=True)


@nox.session
def c(session: nox.Session) -> None:
    """C unit tests under AddressSanitizer and UBSan, warnings as errors."""
    session.install("meson>=1.6", "ninja")
    build = session.create_tmp()
    options = ["-Dcore_only=true", "-Dctests=true", "-Dbuildtype=debug", "-Db_sanitize=address,undefined"]
    session.run("meson", "setup", "--wipe", build, *options)
    session.run("meson", "test", "-C", build, "--print-errorlogs")
