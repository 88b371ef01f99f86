"""The tests that LangChain has for every sandbox backend of Deep Agents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

import nsbox
from nsbox.integrations.deepagents import SandboxBackend

_ABSOLUTE = "Deep Agents 0.7: glob() returns absolute paths"
_REPLACES = "Deep Agents 0.7: write() replaces a file"


class TestStandard(SandboxIntegrationTests):
    """Each of them, in a session of its own: nothing may be left behind after any of them."""

    @pytest.fixture
    def sandbox(self) -> Iterator[SandboxBackend]:
        with tempfile.TemporaryDirectory() as workspace, SandboxBackend(nsbox.Policy.workspace(workspace)) as backend:
            yield backend

    @pytest.fixture
    def sandbox_backend(self, sandbox: SandboxBackend) -> SandboxBackend:
        return sandbox

    # What langchain-tests 1.1.9 expects here is older than Deep Agents 0.7: its glob() returns absolute paths, which its
    # permission rules need, and its write() replaces a file that is there.

    @pytest.mark.xfail(reason=_ABSOLUTE, strict=True)
    def test_glob(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob(sandbox_backend, sandbox_test_root)

    @pytest.mark.xfail(reason=_ABSOLUTE, strict=True)
    def test_glob_basic_pattern(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob_basic_pattern(sandbox_backend, sandbox_test_root)

    @pytest.mark.xfail(reason=_ABSOLUTE, strict=True)
    def test_glob_with_directories(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob_with_directories(sandbox_backend, sandbox_test_root)

    @pytest.mark.xfail(reason=_ABSOLUTE, strict=True)
    def test_glob_hidden_files_explicitly(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob_hidden_files_explicitly(sandbox_backend, sandbox_test_root)

    @pytest.mark.xfail(reason=_ABSOLUTE, strict=True)
    def test_glob_with_character_class(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob_with_character_class(sandbox_backend, sandbox_test_root)

    @pytest.mark.xfail(reason=_ABSOLUTE, strict=True)
    def test_glob_with_question_mark(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_glob_with_question_mark(sandbox_backend, sandbox_test_root)

    @pytest.mark.xfail(reason=_REPLACES, strict=True)
    def test_write_existing_file_fails(self, sandbox_backend: Any, sandbox_test_root: str) -> None:
        super().test_write_existing_file_fails(sandbox_backend, sandbox_test_root)
