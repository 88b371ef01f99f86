"""Where nsbox imports from in the caller's process: never a file that a command could have written.

`python -c`, `python -m` and the interactive interpreter have the current directory first in sys.path; a script has its
own directory. If a command left a shutil.py there, nsbox would execute it outside of the sandbox when it first imports
shutil. So a finder stands in front of all others. It only handles imports by nsbox, directly or through other
libraries. These find the standard library where the interpreter keeps it, and other libraries in directories that no
command could write to. It leaves the caller's own imports alone; for them there is `python -P`.

The finder looks at the stack, so imports are written as usual. A module that is loaded already costs nothing.
"""

import sys  # but not __future__, which the caller's directory could have too

TYPE_CHECKING = False  # as in _base.frozen, which isn't imported before the guard stands
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType

opened: set[str] = set()  # directories in which policies of this process have let commands write

_CALLS_BACK = {"_run_before_exec"}  # functions of nsbox that call the caller's code


class _Places:
    """Where the interpreter's libraries are.

    stdlib: directories of the standard library.
    libraries: these, and those of installed packages, each by its usual name and without links.
    """

    def __init__(self, first: object) -> None:
        import os

        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        own = {getattr(sys, "_stdlib_dir", None) or os.path.dirname(os.__file__)}
        for prefix in (sys.base_prefix, sys.base_exec_prefix):
            own |= {os.path.join(prefix, part, version) for part in ("lib", sys.platlibdir)}
        archives = {f"{os.path.dirname(place)}/{version.replace('.', '')}.zip" for place in own}
        stdlib = [*archives, *own, *(os.path.join(place, "lib-dynload") for place in own)]
        self.stdlib = sorted(path for path in stdlib if os.path.exists(path))
        self.first = os.path.realpath(first) if isinstance(first, str) and first else None
        self.above = os.path.dirname(__file__.rpartition("/_base/")[0])  # paths.PACKAGE: one module less at each import
        site = sys.modules.get("site")
        named = [*self.stdlib, *getattr(site, "getsitepackages", list)()]
        named += filter(None, [getattr(site, "USER_SITE", None)])
        if os.path.realpath(self.above) not in self.work():
            named.append(self.above)
        self.libraries = tuple(dict.fromkeys([*named, *map(os.path.realpath, named)]))

    def work(self) -> set[str]:
        """Return directories where commands often work: the current one, the program's, and the first of sys.path."""
        import os

        main = getattr(sys.modules.get("__main__"), "__file__", None)
        try:
            directories = {os.getcwd()}
        except OSError:  # it has been removed, and relative names no longer mean anything
            directories = set()
            main = main if isinstance(main, str) and os.path.isabs(main) else None
        directories |= {os.path.dirname(os.path.realpath(main))} if isinstance(main, str) else set()
        return directories if self.first is None else directories | {self.first}

    def safe(self, entries: "Iterable[object]") -> list[str]:
        """Return those directories of a sys.path that no command could have written to, without links."""
        import os

        # Relative entries, such as "", count from the current directory, and so are left out.
        real = [os.path.realpath(entry) for entry in entries if isinstance(entry, str) and os.path.isabs(entry)]
        return [path for path in dict.fromkeys(real) if not self.is_open(path)]

    def is_open(self, path: str) -> bool:
        """Say if commands may have written to a path that has no link in it."""
        return not _is_in(path, self.libraries) and _is_in(path, opened | self.work())

    def has_open(self, spec: "ModuleSpec") -> bool:
        """Say if commands may have written this module."""
        import os

        files = [spec.origin] if spec.has_location and spec.origin is not None else []
        files += spec.submodule_search_locations or []
        return any(self.is_open(os.path.realpath(file)) for file in files)


def _nothing(*_: object) -> None:
    """Find nothing: stands in for find_spec() of a finder that lacks it."""


def _is_in(path: str, places: "Iterable[str]") -> bool:
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def _is_asked_by_nsbox(frame: "FrameType | None", is_library: dict[str, bool], libraries: tuple[str, ...]) -> bool:
    """Say if it is nsbox that imports, directly or through a library in the interpreter's own directories.

    frame: the innermost frame to look at.
    is_library: a cache of the answer for each module's file.
    libraries: the interpreter's own directories.
    """
    while frame is not None:
        variables = frame.f_globals
        name = variables.get("__name__")
        if isinstance(name, str) and (name[:6] == "nsbox." or name == "nsbox"):
            return frame.f_code.co_name not in _CALLS_BACK
        file = variables.get("__file__")
        if isinstance(file, str):
            known = is_library.get(file)
            if known is None:
                is_library[file] = known = _is_in(file, libraries)
            if not known:
                return False  # the caller's code
        if name == "__main__":
            return False
        frame = frame.f_back
    return False


class _Finder:
    """Finds modules for nsbox; for all other importers it finds nothing."""

    def __init__(self) -> None:
        self._first = "" if getattr(sys.flags, "safe_path", False) or not sys.path else sys.path[0]
        self._places: _Places | None = None
        self._is_library: dict[str, bool] = {}

    @property
    def places(self) -> _Places:
        """Where libraries are; found out on first use."""
        if self._places is None:
            if "os" not in sys.modules:  # python -S
                self._import_os()
            self._places = _Places(self._first)
        return self._places

    def _import_os(self) -> None:
        """Import os from the interpreter's own directory: without os this finder can't work."""
        path = sys.path
        sys.meta_path.remove(self)
        sys.path = [getattr(sys, "_stdlib_dir", None) or next((p for p in path if p), "/")]
        try:
            import os  # noqa: F401
        finally:
            sys.path = path
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec of a module that nsbox imports; raises ModuleNotFoundError if a command may have made it."""
        top = name.partition(".")[0]
        if top == "nsbox" or not _is_asked_by_nsbox(sys._getframe(1), self._is_library, self.places.libraries):
            return None
        spec = None
        if path is None and top in sys.stdlib_module_names:
            spec = self._spec(name, path, self.places.stdlib, target)
        if spec is None:
            entries = sys.path if path is None else path
            spec = self._spec(name, path, self.places.safe(entries), target)
        if spec is None and top == "_cffi_backend":  # nsbox needs it, and nsbox itself comes from there
            spec = self._spec(name, path, [self.places.above], target, may_be_open=True)
        if spec is not None:
            if spec.has_location and spec.origin is not None:
                self._is_library[spec.origin] = True  # its later imports are on nsbox's behalf too
            return spec
        for finder in sys.meta_path:
            planted = None if finder is self else getattr(finder, "find_spec", _nothing)(name, path, target)
            if planted is not None:
                where = planted.origin or ", ".join(planted.submodule_search_locations or ())
                raise ModuleNotFoundError(
                    f"No module named {name!r} for nsbox: commands may have written {where}", name=name
                )
        return None

    def _spec(
        self,
        name: str,
        path: "Sequence[str] | None",
        safe: list[str],
        target: "ModuleType | None",
        *,
        may_be_open: bool = False,
    ) -> "ModuleSpec | None":
        """Ask the other finders; some know no path, and some wrap another finder and look everywhere."""
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                where = safe if getattr(finder, "__name__", "") == "PathFinder" else path
                spec = finder.find_spec(name, where, target)
                if spec is not None and (may_be_open or not self.places.has_open(spec)):
                    return spec
        return None


class only_libraries:
    """A with block in which sys.path has only safe directories, for a library that looks for plug-ins there.

    Names of plug-ins are in files of their own (*.dist-info/entry_points.txt), which the finder doesn't see. Other
    threads see the short sys.path meanwhile.
    """

    def __enter__(self) -> None:
        places = next((finder.places for finder in sys.meta_path if isinstance(finder, _Finder)), None)
        self._whole = sys.path
        if places is not None:
            sys.path = places.safe(sys.path)
        self._safe = sys.path[:]

    def __exit__(self, *_: object) -> None:
        added = [entry for entry in sys.path if entry not in self._safe]
        sys.path = self._whole
        sys.path += added


def guard() -> None:
    """Install the finder, once per process, before anything else of nsbox is imported."""
    if not any(type(finder).__name__ == "_Finder" and type(finder).__module__ == __name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
