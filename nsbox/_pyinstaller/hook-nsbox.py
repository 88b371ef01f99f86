"""What a frozen program needs of nsbox: it imports its modules by name and late, where PyInstaller doesn't see it."""

from PyInstaller.utils.hooks import collect_submodules

hiddenimports = [
    *collect_submodules("nsbox", filter=lambda name: not name.startswith(("nsbox._pyinstaller", "nsbox._gevent"))),
    "_cffi_backend",
]
