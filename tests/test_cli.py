import subprocess
import sys

import pytest

from scope_wm import __version__
from scope_wm.cli import COMMANDS, groups, main


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0
    assert f"usage: scope-wm {name}" in shown
    assert "Example" in shown


def test_help_lists_every_command_without_heavy_imports() -> None:
    script = (
        "import sys; from scope_wm.cli import main; assert main(['--help']) == 0;"
        "heavy = {'torch', 'cv2', 'mujoco', 'pymunk', 'h5py', 'gymnasium', 'tyro'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    for name, command in COMMANDS.items():
        assert name in shown
        assert command.purpose in shown


@pytest.mark.parametrize("group", sorted(groups()))
def test_a_group_lists_only_its_own_commands(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([group, "--help"]) == 0
    listed = capsys.readouterr().out.split("commands:\n")[1].split("\n\n")[0]
    assert all(line.strip().startswith(group) for line in listed.splitlines())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a command"),
        (["data"], "expected a command of 'data'"),
        (["colect"], "did you mean 'collect'?"),
        (["zzz"], "scope-wm --help lists the commands"),
        (["data", "info", "no-such-store"], "no-such-store"),
    ],
)
def test_wrong_usage_says_what_was_expected(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--no-such-option"])
    assert stop.value.code == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"scope-wm {__version__}\n"


def test_doctor_reports_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("torch", "cores", "GiB", "GFLOP/s", "compiler"):
        assert word in shown


def test_doctor_says_what_to_do_about_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "pip install '.[hub]'" in shown
    assert "pip install '.[dev]'" in shown


@pytest.mark.parametrize("option", ["--seconds", "--seed"])
def test_bench_refuses_senseless_numbers(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "tasks", option, "-1"])
    assert stop.value.code == 2
    assert f"expected {option}" in capsys.readouterr().err


def test_the_module_is_the_command() -> None:
    shown = subprocess.run([sys.executable, "-m", "scope_wm", "zzz"], capture_output=True, text=True)
    assert shown.returncode == 2
    assert "unknown command 'zzz'" in shown.stderr
