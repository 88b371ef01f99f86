"""os, for the modules that bwrap's command line imports: a lean stand-in, unless the real one is already imported.

An interpreter started with -S has posix, which is most of os. The rest (posixpath, the abstract classes of
collections.abc, the environment as a mapping) costs 1.1 ms, a sixth of such a start, and a short program doesn't need
it. Delete this module when bwrap's command line needs no Python.

Other modules on the way to a spawn say in a paragraph that begins with "Lean:" which imports they replace or put off,
what that saves, and when to undo it. The milliseconds are processor time on top of a bare start (7 ms for python -I -S,
CPython 3.11 on Linux), the least of 25 runs.
"""

from __future__ import annotations

import sys

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING or "os" in sys.modules or "posix" not in sys.builtin_module_names:
    import os as os
else:
    import posix

    class _Os(type(sys)):
        """Has what posix has; anything else comes from the real os when it is first used."""

        def __getattr__(self, name):
            import os as real

            value = getattr(real, name)
            setattr(self, name, value)
            return value

    def _fsencode(name):
        name = posix.fspath(name)
        return name.encode(_ENCODING, _ERRORS) if isinstance(name, str) else name

    def _fsdecode(name):
        name = posix.fspath(name)
        return name.decode(_ENCODING, _ERRORS) if isinstance(name, bytes) else name

    _ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
    os = _Os("os")
    os.__dict__.update(posix.__dict__, __name__="os", fsencode=_fsencode, fsdecode=_fsdecode)
    del os.environ  # os.environ is another object than posix.environ
