"""What code shows: MIME bundles as Jupyter's, display(), and matplotlib's figures.

A bundle is a dict of MIME types: text as str, images in base64, JSON as JSON. An object says its bundle by the methods
that notebooks ask (https://ipython.readthedocs.io/en/stable/config/integrating.html); they count if its class has them.

Matplotlib draws without a screen. plt.show() shows the open figures, and so does the end of a run; both close them.
"""

from __future__ import annotations

import binascii
import importlib.machinery
import io
import sys
from typing import Any, Callable

from ..interrupts import attempt
from .values import NoValueError, as_json, as_text, mro, plain

_MOST_DISPLAYS = 200
_MOST_FIGURES = 50
_METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_latex_", "text/latex"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)
_NAMES = frozenset(name for name, _ in _METHODS) | {"_repr_mimebundle_"}
_PLAIN = "text/plain"
_vars = vars(type)["__dict__"].__get__
_base64 = binascii.b2a_base64
_modules = sys.modules
_BytesIO = io.BytesIO


class Displays:
    """What one run has shown so far.

    bundles: one for each thing that was shown.
    is_short: whether something was left out, because it was too large or there was too much.
    """

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self.start(0, 0)

    def start(self, mime_bytes: int, depth: int) -> None:
        """Begin a run.

        mime_bytes: of all bundles together.
        depth: levels of JSON.
        """
        self.bundles: list[dict[str, Any]] = []
        self.is_short = False
        self._left = mime_bytes
        self._depth = depth

    # ---- bundles ----------------------------------------------------------------------------------------------------

    def bundle(self, value: Any) -> dict[str, Any] | None:
        """Return an object's bundle, without plain text; None if it has none, or nothing fits."""
        if _figure_class() in mro(type(value)):
            return self._image(value)
        names = {name for base in mro(type(value)) for name in _NAMES & _vars(base).keys()}
        found: dict[str, Any] = {}
        if "_repr_mimebundle_" in names:
            many = self._called(value, "_repr_mimebundle_", {"include": None, "exclude": None})
            found.update(self._checked(many))
        for name, mime in _METHODS:
            if name in names and mime not in found:
                found.update(self._checked({mime: self._called(value, name, {})}))
        return found or None

    def _called(self, value: Any, name: str, options: dict[str, Any]) -> Any:
        answer, error = attempt(lambda: getattr(value, name)(**options))
        if type(error) is KeyboardInterrupt or type(error) is SystemExit:
            raise error
        if error is not None:
            return None
        return answer[0] if type(answer) is tuple and answer else answer  # the second item is metadata

    def _checked(self, many: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if type(many) is not dict or len(many) > 50:
            return found
        for mime, data in many.items():
            if type(mime) is not str or len(mime) > 200 or mime == _PLAIN or data is None:
                continue
            data = self._fitting(mime, data)
            if data is not None:
                found[mime] = data
        return found

    def _fitting(self, mime: str, data: Any) -> Any:
        """Return data of a MIME type as JSON has it; None if it doesn't fit, or is of another type."""
        kind = type(data)
        if bytes in mro(kind) or kind is bytearray or kind is memoryview:
            size = memoryview(data).nbytes
            if self._takes(size * 4 // 3 + 4):
                return _base64(data, newline=False).decode("ascii")
        elif str in mro(kind):
            size = str.__len__(data)
            if self._takes(size if str.isascii(data) else 6 * size):
                return plain(data, size)
        elif mime.endswith("json"):
            try:
                new = as_json(data, self._depth, max(self._left, 0))
            except NoValueError:
                self.is_short = True
            else:
                self._left -= 100
                return new
        return None

    def _takes(self, size: int) -> bool:
        if size > self._left:
            self.is_short = True
            return False
        self._left -= size
        return True

    # ---- what was shown ---------------------------------------------------------------------------------------------

    def add(self, value: Any) -> None:
        """Show an object."""
        if len(self.bundles) >= _MOST_DISPLAYS:
            self.is_short = True
            return
        new = self.bundle(value) or {}
        text, is_short = as_text(value, max(min(self._left, 1 << 16), 20))
        self._left -= len(text)
        self.is_short |= is_short
        self.bundles.append({_PLAIN: text, **new})

    def display(self, *objects: Any, raw: bool = False, **options: Any) -> None:
        """Show objects, as IPython's function of this name does: the reply has a bundle for each.

        raw: the objects are bundles already, dicts by MIME type.
        options: IPython's others, without effect.
        """
        for value in objects:
            if raw and type(value) is dict and len(self.bundles) < _MOST_DISPLAYS:
                text: Any = value.get(_PLAIN)
                new = {_PLAIN: plain(text, max(min(self._left, 1 << 16), 0))} if str in mro(type(text)) else {}
                self._left -= len(new.get(_PLAIN, ""))
                self.bundles.append({**new, **self._checked(value)})
            else:
                self.add(value)

    # ---- figures ----------------------------------------------------------------------------------------------------

    def _image(self, figure: Any) -> dict[str, Any] | None:
        image, error = attempt(_png, figure)
        if type(error) is KeyboardInterrupt or type(error) is SystemExit:
            raise error
        return self._checked({"image/png": image}) or None if error is None else None

    def show(self) -> None:
        """Show matplotlib's open figures, and close them: what pyplot.show() does here."""
        self.figures(None)

    def figures(self, value: Any) -> None:
        """Show matplotlib's open figures, and close them.

        value: not this one, since it is shown as the value of the run.
        """
        pyplot = _modules.get("matplotlib.pyplot")
        helpers = _modules.get("matplotlib._pylab_helpers")
        if pyplot is None or helpers is None:
            return
        managers = vars(vars(helpers)["Gcf"])["figs"]
        if not managers:
            return
        figures = [manager.canvas.figure for manager in list(managers.values())]
        try:
            for figure in figures[:_MOST_FIGURES]:
                if figure is not value:
                    self.add(figure)
            self.is_short |= len(figures) > _MOST_FIGURES
        finally:
            attempt(vars(pyplot)["close"], "all")


def _figure_class() -> Any:
    module = _modules.get("matplotlib.figure")
    return vars(module).get("Figure") if module is not None else None


def _png(figure: Any) -> bytes:
    buffer = _BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()


class Pyplot:
    """Finds matplotlib.pyplot as usual, and gives it another show() once it is loaded."""

    def __init__(self, show: Callable[..., None]) -> None:
        """Stand in sys.meta_path, before the other finders.

        show: what plt.show() does.
        """
        self.show: Any = lambda *_, **__: show()  # pyplot gives it attributes, which a method can't have
        self.show.__name__ = self.show.__qualname__ = "show"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of matplotlib.pyplot, whose loader also replaces show(); None for all other modules."""
        if name != "matplotlib.pyplot":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def load(module: Any) -> None:
            execute(module)

            def show(*arguments: Any, **options: Any) -> None:  # a function: pyplot sets its __signature__
                self.show(*arguments, **options)

            module.show = show

        spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec
