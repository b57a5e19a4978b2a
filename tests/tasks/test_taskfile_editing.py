"""Editing single fields of a task file: every other byte stays as its author wrote it."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tickdown.tasks.editing import EditRefused, _replace, edited, set_fields
from tickdown.tasks.task import Surroundings, parse_task
from tickdown.tasks.yaml_tree import YamlError

SUSPEND = {"enabled": "false", "disabled_reason": "auto_suspended"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("id: a\nenabled: true\ncommand: x\n", "id: a\nenabled: false\ncommand: x\n"),
        ("id: a\nenabled: true # by Ann\ncommand: x\n", "id: a\nenabled: false # by Ann\ncommand: x\n"),
        ("id: a\nenabled:   'yes'   # c\n", "id: a\nenabled:   false   # c\n"),
        ("id: a\n\"enabled\" : true\ncommand: x\n", "id: a\n\"enabled\" : false\ncommand: x\n"),
        ("id: a\nenabled:\ncommand: x\n", "id: a\nenabled: false\ncommand: x\n"),
        ("id: a\nenabled: # c\ncommand: x\n", "id: a\nenabled: false # c\ncommand: x\n"),
        ("id: a\nenabled:\n  true\ncommand: x\n", "id: a\nenabled:\n  false\ncommand: x\n"),
        ("id: a\nenabled: !!bool true\ncommand: x\n", "id: a\nenabled: false\ncommand: x\n"),
        ("id: a\nenabled: >-\n  true\ncommand: x\n", "id: a\nenabled: false\ncommand: x\n"),
        ("# 🎉 é\nid: a # 🎉🎉\ntitle: 'añb 🎉'\nenabled: true # 🎉\n", "# 🎉 é\nid: a # 🎉🎉\ntitle: 'añb 🎉'\nenabled: false # 🎉\n"),
        ("id: a\ncommand: x\n", "id: a\ncommand: x\nenabled: false\n"),
        ("\n\n# first\n\nid: a\n# last\n\n", "\n\n# first\n\nid: a\n# last\n\nenabled: false\n"),
        ("id: a\ncommand: |\n  one\n\n  enabled: true\n", "id: a\ncommand: |\n  one\n\n  enabled: true\nenabled: false\n"),
        ("id: a\ncommand: |+\n  one\n\n\n", "id: a\ncommand: |+\n  one\n\n\nenabled: false\n"),
        ("id: a\nenv:\n  enabled: true\n", "id: a\nenv:\n  enabled: true\nenabled: false\n"),
        ("id: a\ncommand: 'enabled: true'\nenabled: on\n", "id: a\ncommand: 'enabled: true'\nenabled: false\n"),
        ("  id: a\n  command: x\n", "  id: a\n  command: x\n  enabled: false\n"),
        ("  id: a\n  enabled: true\n", "  id: a\n  enabled: false\n"),
        ("{id: a, enabled: true, command: x}\n", "{id: a, enabled: false, command: x}\n"),
        ("{id: a, command: x}\n", "{enabled: false, id: a, command: x}\n"),
        ("{\n  id: a, # one\n  command: x, # two\n}\n", "{enabled: false, \n  id: a, # one\n  command: x, # two\n}\n"),
        ("{}\n", "{enabled: false}\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("bom", ["", "\ufeff"], ids=["", "bom"])
def test_only_the_field_changes(before, after, newline, bom):
    def whole(fields: str) -> str:
        return bom + f"---\n{fields}---\n\n# Body\n---\nenabled: true\n".replace("\n", newline)

    assert edited(whole(before), {"enabled": "false"}) == whole(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("id: a\ndisabled_reason: paused\ncommand: x\n", "id: a\ncommand: x\n"),
        ("id: a\ndisabled_reason: 'paused'\n", "id: a\n"),
        ("id: a\ndisabled_reason:\ncommand: x\n", "id: a\ncommand: x\n"),
        ("id: a\ndisabled_reason: paused # by Ann\ncommand: x\n", "id: a\ndisabled_reason: null # by Ann\ncommand: x\n"),
        ("id: a\ndisabled_reason: >-\n  paused\ncommand: x\n", "id: a\ndisabled_reason: null\ncommand: x\n"),
        ("{id: a, disabled_reason: paused}\n", "{id: a, disabled_reason: null}\n"),
        ("id: a\ncommand: x\n", "id: a\ncommand: x\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_a_field_is_taken_away(before, after, newline):
    def whole(fields: str) -> str:
        return f"---\n{fields}---\nBody\n".replace("\n", newline)

    assert edited(whole(before), {"disabled_reason": None}) == whole(after)


def test_several_fields_at_once():
    before = "---\nid: a\nenabled: true # on\n---\n"
    suspended = edited(before, SUSPEND)
    assert suspended == "---\nid: a\nenabled: false # on\ndisabled_reason: auto_suspended\n---\n"
    assert edited(suspended, {"enabled": "true", "disabled_reason": None}) == before


def test_the_same_edit_twice_changes_nothing_more():
    once = edited("---\nid: a\n---\n", SUSPEND)
    assert edited(once, SUSPEND) == once


@pytest.mark.parametrize(
    "text",
    [
        "no frontmatter",
        "---\nid: a\n",
        "---\n- a\n---\n",
        "---\n---\n",
        "---\nid: [\n---\n",
        "---\nid: a\nid: b\n---\n",
        "---\nid: a\n...\n---\n",
        "---\nid: a\ntitle: *x\n---\n",
    ],
)
def test_what_can_not_be_edited_cleanly_is_refused_and_left_alone(tmp_path, text):
    with pytest.raises((EditRefused, YamlError)):
        edited(text, SUSPEND)
    path = tmp_path / "a.md"
    path.write_text(text)
    with pytest.raises(EditRefused):
        set_fields(path, SUSPEND, "a")
    assert path.read_text() == text
    assert os.listdir(tmp_path) == ["a.md"]


@pytest.mark.parametrize("value", ["false\nid: b", "[", "a: b", "x # y", "'"])
def test_a_value_that_would_mean_something_else_is_refused(value):
    with pytest.raises((EditRefused, YamlError)):
        edited("---\nid: a\nenabled: true\ncommand: x\n---\n", {"enabled": value})


# --- files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o440])
def test_mode_and_owner_stay(tmp_path, mode):
    path = tmp_path / "a.md"
    path.write_text("---\nid: a\n---\n")
    path.chmod(mode)
    before = path.stat()
    set_fields(path, SUSPEND, "a")
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert "auto_suspended" in path.read_text()
    assert os.listdir(tmp_path) == ["a.md"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_owner_stays(tmp_path):
    path = tmp_path / "a.md"
    path.write_text("---\nid: a\n---\n")
    os.chown(path, 1234, 4321)
    set_fields(path, SUSPEND, "a")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


def test_a_link_stays_a_link_and_its_target_is_edited(tmp_path):
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "a.md"
    target.write_bytes(b"---\r\nid: a\r\n---\r\n")
    link = tmp_path / "a.md"
    link.symlink_to("real/a.md")
    set_fields(link, {"enabled": "false"}, "a")
    assert link.is_symlink()
    assert target.read_bytes() == b"---\r\nid: a\r\nenabled: false\r\n---\r\n"


def test_a_file_that_is_gone_or_no_text_is_refused(tmp_path):
    with pytest.raises(EditRefused, match="can't be edited"):
        set_fields(tmp_path / "gone.md", SUSPEND, "a")
    (tmp_path / "a.md").write_bytes(b"---\nid: \xff\n---\n")
    with pytest.raises(EditRefused, match="can't be edited"):
        set_fields(tmp_path / "a.md", SUSPEND, "a")


def test_a_file_that_somebody_else_saved_meanwhile_is_not_overwritten(tmp_path):
    path = tmp_path / "a.md"
    path.write_text("---\nid: a\n---\n")
    before = path.stat()
    path.write_text("---\nid: a\ncommand: new\n---\n")
    with pytest.raises(EditRefused, match="changed by somebody else"):
        _replace(path, b"---\nid: a\nenabled: false\n---\n", before)
    assert path.read_text() == "---\nid: a\ncommand: new\n---\n"
    assert os.listdir(tmp_path) == ["a.md"]


# --- whatever the file looks like --------------------------------------------------------------------------------

WORDS = st.text(alphabet="abé🎉 xyz", min_size=1, max_size=12).map(lambda text: f"q{text}".rstrip())
VALUES = st.one_of(
    WORDS,
    WORDS.map(lambda word: f'"{word} # no comment"'),
    WORDS.map(lambda word: f"'{word}: x'"),
    WORDS.map(lambda word: f"[{word}, 5]"),
    WORDS.map(lambda word: f"{{k: {word}}}"),
    WORDS.map(lambda word: f"|\n  {word}\n\n  enabled: true"),
    WORDS.map(lambda word: f">-\n    {word}\n    # text"),
    WORDS.map(lambda word: f"\n  - {word}\n  - b"),
    st.just(""),
)
EXTRAS = st.sampled_from(["", "", "\n", "# enabled: true", "   # ünder", "#", "\t\n"])


@st.composite
def frontmatters(draw) -> list[str]:
    """Blocks of a frontmatter: a field with all its lines, a comment, or empty lines."""
    names = draw(
        st.lists(st.sampled_from(["id", "title", "command", "env", "tags", "ключ", "x-1"]), unique=True, min_size=1)
    )
    blocks = []
    for name in names:
        extra = draw(EXTRAS).replace("\t", "")
        if extra:
            blocks.append(extra)
        blocks.append(f"{name}: {draw(VALUES)}")
    at = draw(st.integers(0, len(blocks)))
    enabled = draw(st.sampled_from([None, "enabled: true", "enabled:", "enabled: 'on' # 🎉 why", "enabled:   yes  "]))
    if enabled is not None:
        blocks.insert(at, enabled)
    return blocks


@given(frontmatters(), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\ufeff"]))
@settings(max_examples=300)
def test_every_other_line_stays_byte_for_byte(blocks, newline, bom):
    text = bom + "\n".join(["---", *blocks, "---", "", "Body 🎉", "enabled: true"]).replace("\n", newline)
    result = edited(text, {"enabled": "false"})
    before, after = text.split(newline), result.split(newline)
    own = [line for line in blocks if line.startswith("enabled:")]
    if own:
        at = before.index(own[0])
        assert before[:at] + before[at + 1 :] == after[:at] + after[at + 1 :]
        assert after[at].startswith("enabled:") and "false" in after[at]
        assert after[at].partition("#")[1:] == own[0].partition("#")[1:]
    else:
        at = len(before) - 4  # right before the closing line
        assert after == [*before[:at], "enabled: false", *before[at:]]
    _, problems, _ = parse_task(result.removeprefix("\ufeff"), "a.md", Surroundings("UTC"))
    assert not [problem for problem in problems if problem.field == "enabled"]


@given(st.text(max_size=60))
def test_no_file_brings_the_editor_down(text):
    for candidate in (text, f"---\n{text}\n---\n"):
        try:
            result = edited(candidate, SUSPEND)
        except (EditRefused, YamlError):
            continue
        assert edited(result, SUSPEND) == result
