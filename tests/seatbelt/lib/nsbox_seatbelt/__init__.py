"""Tools that check profiles of macOS's sandbox (Seatbelt) on any system: a parser, a linter, a model, a real Scheme."""

from __future__ import annotations

from hypothesis import settings

calm = settings(deadline=None)  # no test here depends on time
