"""os, for the modules that bwrap's command line imports: where nobody has imported it yet, without what that takes.

An interpreter started with -S has posix, which is most of os. The rest of it (posixpath, the abstract classes of
collections.abc, the environment as a mapping) is a sixth of such a start, and needn't be there for a short program.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING or "os" in sys.modules or "posix" not in sys.builtin_module_names:
    import os as os
else:
    import posix

    class _Os(type(sys)):
        """What posix has at once, and anything else from the real os when it is asked for."""

        def __getattr__(self, name):
            value = getattr(__import__("os"), name)
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
    del os.environ  # os has another one of that name
