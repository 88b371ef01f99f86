"""What to install for an adapter whose framework is missing."""

from __future__ import annotations


def without(extra: str, error: ImportError) -> ImportError:
    """Return the error of an adapter without its framework, which says what to install.

    extra: the extra of nsbox that has the framework, such as "langchain".
    error: what the framework's import raised. If the framework itself lacks something, its own message is kept.
    """
    return ImportError(f'{error}. To install what this needs: pip install "nsbox[{extra}]"', name=error.name)
