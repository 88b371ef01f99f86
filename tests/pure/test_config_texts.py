"""Configuration as text: what isn't TOML, JSON or YAML, the lines of keys, any text at all, and the schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsbox_pure.configs import EVERYTHING, FORMATS, calm, check_schema, directories, needs, of, problems

from nsbox import Policy, PolicyError, UnavailableError
from nsbox._config.formats import read
from nsbox._config.keys import KEYS, Key, default
from nsbox._config.load import ConfigError, dumps, loads, schema


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return directories(tmp_path)


# ---- texts that are none


@pytest.mark.parametrize(
    ("format", "text", "told"),
    [
        ("toml", "a = ", "1: isn't TOML: Invalid value"),
        ("toml", "uid = 1\nuid = 2", "2: isn't TOML: Cannot overwrite a value"),
        ("toml", "[env]\n[env]", "2: isn't TOML: Cannot declare"),
        ("toml", "a = " + "[" * 10000, "is nested too deeply"),
        ("toml", "a." * 500_000 + "a = 1", "has lines with too many dots"),
        ("toml", "uid = " + "1" * 5000, "isn't TOML: Exceeds the limit"),
        ("toml", "a\0 = 1", "1: isn't TOML: "),
        ("json", '{"uid": 1,\n "uid": 2}', "2: uid: is there twice, first in line 1"),
        ("json", '{"env":\n{"A": "1",\n"\\u0041": "2"}}', "3: env.A: is there twice, first in line 2"),
        ("json", '{"uid": 1,}', "1: isn't JSON: "),
        ("json", '{\n// no\n"uid": 1}', "2: isn't JSON: Expecting property name enclosed in double quotes; JSON has no comments"),
        ("json", '{"limits": {"cpus": NaN}}', "isn't JSON: NaN isn't a number there"),
        ("json", "[" * 100_000, "is nested too deeply"),
        ("json", '{"uid": ' + "1" * 5000 + "}", "isn't JSON: Exceeds the limit"),
        ("json", "", "1: isn't JSON: Expecting value"),
        ("json", "[]", "is a list, must be a table"),
        ("json", "null", "is null, must be a table"),
        ("yaml", "uid: 1\nuid: 2", "2: uid: is there twice, first in line 1"),
        ("yaml", "env: {A: x, A: y}", "1: env.A: is there twice, first in line 1"),
        ("yaml", "x0: &x0 [a,a]\n" + "".join(f"x{i+1}: &x{i+1} [*x{i},*x{i}]\n" for i in range(40)), "1: has more than 20000 values, with what its aliases stand for"),
        ("yaml", "a: &a [*a]", "1: is nested too deeply"),
        ("yaml", "a: *b", "1: isn't YAML: found undefined alias"),
        ("yaml", "sandbox:\n  limits:\n    <<: {memory: 1G}", "3: sandbox.limits.<<: isn't a key here"),
        ("yaml", "a: " + "[" * 60, "1: is nested too deeply"),
        ("yaml", "protected: [" + "a, " * 20_000 + "]", "1: has more than 20000 values"),
        ("yaml", "!!python/object/apply:os.system [echo]", "is a python/object/apply:os.system, must be a table"),
        ("yaml", "hostname: 2020-01-01", "1: hostname: is a timestamp, must be a text; quote it"),
        ("yaml", "uid: !!int many", "1: uid: is a number that is none, must be a whole number"),
        ("yaml", "uid: " + "1" * 5000, "1: uid: is a number of many digits, must be a whole number"),
        ("yaml", "env: !!str {A: x}", "1: env: is a str, must be a table of texts"),
        ("yaml", "deny: !!map [a]", "1: deny: is a map, must be a list of texts"),
        ("yaml", "deny: !!binary [a]", "1: deny: is a binary, must be a list of texts"),
        ("yaml", "uid: !!int ''", "1: uid: is a number that is none, must be a whole number"),
        ("yaml", "env: !!bool x", "1: env: is a truth value that is none, must be a table of texts"),
        ("yaml", "env: {[a]: x}", "1: env: has a key that isn't a text"),
        ("yaml", "workspace: ~", "1: workspace: is null, must be a text; leave the key out, or quote it if it is ~"),
        ("yaml", "uid: 1\n---\nuid: 2", "2: isn't YAML: but found another document"),
        ("yaml", "uid: 1\n x: : y", "2: isn't YAML: mapping values are not allowed"),
        ("yaml", "a: \x01", "isn't YAML: unacceptable character #x0001"),
        ("yaml", "- a", "is a list, must be a table"),
        ("yaml", "text", "is a text, must be a table"),
    ],
)  # fmt: skip
def test_malformed(format: str, text: str, told: str, base: Path) -> None:
    """What is no text of the format, or would take it for ever, is one problem, with the line where one is known."""
    (found,) = problems(text, base, format)
    assert found.startswith(told)


@pytest.mark.parametrize("format", FORMATS)
def test_too_large_or_no_text(format: str, base: Path) -> None:
    """A text of more than a MiB, or with surrogates, isn't parsed at all."""
    assert problems("#" * (1 << 20) + "#", base, format) == ["is larger than 1048576 bytes"]
    assert problems("#\udc80", base, format) == ["has surrogates, which no file in UTF-8 has"]


def test_byte_order_mark(base: Path) -> None:
    """One that some editors write is passed over."""
    for format, text in (("toml", "uid = 1"), ("json", '{"uid": 1}'), ("yaml", "uid: 1")):
        assert of("\ufeff" + text, base, needs(format)).uid == 1


def test_yaml_words(base: Path) -> None:
    """Words that YAML takes for truth values are these, but not as keys; empty is nothing at all."""
    assert of("network: off", base, "yaml").network == "none"
    assert of("network: yes", base, "yaml").network == "host"
    assert of("env: {NO: a, 1: b}", base, "yaml").env == (("NO", "a"), ("1", "b"))
    assert of("", base, "yaml") == of("# nothing\n", base, "yaml") == of("", base)


def test_yaml_of_others(base: Path) -> None:
    """What stands beside the table may be whatever YAML has; an alias is what it stands for."""
    text = """
on: {1: 2020-01-01, big: %s, odd: !thing {a: b}}
where: &where {root: work, mode: rw}
more: {<<: *where, loops: [1, 2]}
sandbox:
  paths: {a: *where, b: {root: data}}
"""
    policy = of(text % ("1" * 5000), base, "yaml")
    assert (policy.write, policy.read) == ((f"{base}/work",), (f"{base}/data",))


def test_format_is_one(base: Path) -> None:
    """Another format is an error that lists them."""
    for call in (lambda: loads("", "ini", base=base), lambda: dumps(Policy.workspace(base), "ini")):
        with pytest.raises(PolicyError, match="format: 'ini' is unknown, must be one of toml, json, yaml"):
            call()


def test_without_pyyaml(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML is an error that says what to install; the others do without."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    for call in (lambda: loads("", "yaml", base=base), lambda: dumps(Policy.workspace(base), "yaml")):
        with pytest.raises(UnavailableError, match=r"pip install 'nsbox\[yaml\]'"):
            call()
    assert of("uid = 1", base).uid == 1


def test_import_is_light() -> None:
    """Reading TOML loads neither YAML nor difflib; nothing of it is loaded by nsbox itself."""
    code = "import sys, nsbox; nsbox.Policy; assert not any('_config' in m for m in sys.modules);"
    code += "from nsbox._config.load import loads; loads('uid = 1', 'toml', base='/');"
    code += "assert not {'yaml', 'difflib', 'json', 'argparse', 'dataclasses'} & set(sys.modules), sys.modules.keys()"
    done = subprocess.run([sys.executable, "-P", "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ---- lines


LINES = {
    "toml": (
        'protected = [\n "a",  # ]\n]\nenv.B = 1\n\nhostname = """\n[limits]\n"""\n[limits]\nprocesses = []\n[paths]\na = 1\nb = 2\n',
        ["4: env.B", "10: limits.processes", "12: paths.a", "13: paths.b"],
    ),
    "json": (
        '{"env": {"A": "x{\\"[,:", "B": [1,\n 2]},\n "limits":\n {"memory" : 1, "processes": []}, "paths": {"a": 1,\n"b": 2}}',
        ["1: env.B", "4: limits.processes", "4: paths.a", "5: paths.b"],
    ),
    "yaml": (
        'env: {A: "x",\n B: [1]}\nlimits:\n  memory: 1\n  processes: []\npaths:\n  a: 1\n  b: 2\n',
        ["2: env.B", "5: limits.processes", "7: paths.a", "8: paths.b"],
    ),
}


@pytest.mark.parametrize("format", LINES)
def test_lines(format: str, base: Path) -> None:
    """Each key is found in its line, whatever is in strings and lists around it."""
    text, lines = LINES[format]
    assert [line.split(": is ")[0] for line in problems(text, base, format)] == lines


def test_not_everything_is_told_of_what_is_no_configuration(base: Path) -> None:
    """A hundred problems are enough, and no line is endless."""
    assert len(problems("".join(f"k{i}: 1\n" for i in range(5000)), base, "yaml")) == 101
    (told,) = problems(f"{'x' * 10_000} = 1", base)
    assert len(told) < 1300 and "...: isn't a key here" in told


# ---- the schema


def test_schema_is_one() -> None:
    """It is a schema, every key has a description, and the largest file fits it."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema())
    described = schema()["properties"]
    assert all(described[key.name]["description"] for key in KEYS) and len(described) == len(KEYS)
    check_schema(read(EVERYTHING, "toml")[0])


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=False) | st.sampled_from(
        ["", ".", "a", "~", "64M", "none", "host", "enabled", ".md", "ro", "GH_TOKEN", "isolated", "uts"]
    ),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "", "root", "memory", "cpus"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


def likely(key: Key) -> Any:
    """Values that a key may well have, and some that it may not."""
    said = st.just(default(key)) | st.just(key.example) | st.sampled_from([*key.words, "x", True])
    if key.kind in ("texts", "paths"):
        said |= st.lists(st.sampled_from([*key.words, ".", "work"]), max_size=2)
    return said


@calm
@given(data=st.data())
def test_schema_and_parser_agree(base: Path, data: st.DataObject) -> None:
    """What is read fits the schema: what an editor marks as wrong is an error here too. No other exception is raised."""
    jsonschema = pytest.importorskip("jsonschema")
    chosen = data.draw(st.sets(st.integers(0, len(KEYS) - 1), max_size=3))
    tree = {KEYS[i].name: data.draw(likely(KEYS[i]) | values) for i in chosen}
    fits = jsonschema.Draft202012Validator(schema()).is_valid(tree)
    try:
        loads(json.dumps(tree), "json", base=base, section="")
    except ConfigError:
        return
    assert fits


@pytest.mark.parametrize("format", FORMATS)
@calm
@given(
    text=st.text(st.characters(codec="utf-8"))
    | st.text("[]{}:,.=\"'\n -&*!|>%?#~a1\\ux\t")
    | st.lists(st.sampled_from(["uid", ": ", " = ", "1", "\n", "  ", "[", "]", "{", "}", "- ", '"', "#", "*a", "&a ", "!!", "<<", "? ", ","])).map("".join)
)  # fmt: skip
def test_any_text(format: str, base: Path, text: str) -> None:
    """Whatever a file has, a policy comes out, or an error that is made for it."""
    try:
        loads(text, needs(format), base=base)
    except ConfigError as error:
        assert str(error)
