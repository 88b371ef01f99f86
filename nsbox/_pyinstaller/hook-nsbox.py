"""What a frozen program needs of nsbox: it imports its modules by name and late, where PyInstaller doesn't see it."""

import os

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, get_package_paths

hiddenimports = [
    *collect_submodules(
        "nsbox", filter=lambda name: not name.startswith(("nsbox._pyinstaller", "nsbox._lifetime.gevent"))
    ),
    "_cffi_backend",
]
# Programs of their own: bwrap, and what enforces network lists, on Linux and on macOS.
_programs = [os.path.join(get_package_paths("nsbox")[1], name) for name in ("nsbox-bwrap", "nsbox-net", "nsbox-proxy")]
binaries = [(path, "nsbox") for path in _programs if os.path.exists(path)]
# What runs in a policy's own interpreter, as text.
datas = collect_data_files("nsbox._guest", include_py_files=True)
