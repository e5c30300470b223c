import ast
from pathlib import Path

import pytest

import scope_wm

PACKAGE = Path(scope_wm.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))

# Imports point one way: a module may import from its own layer and from lower ones.
LAYERS = [
    {"types", "files", "records", "hardware"},
    {"selector", "background", "elite_bank", "model", "planning", "tasks"},
    {"data"},
    {"train", "evaluate"},
    {"presets"},
    {"report", "doctor", "bench", "shipping"},
    {"pipeline"},
    {"cli"},
    {"__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def part_of(module: str) -> str:
    return module.split(".")[1]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(str(node.module))
            if node.module == "scope_wm":
                found |= {f"scope_wm.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("scope_wm.") and "__version__" not in name}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if own == "__init__":
        assert imports(path) == set()
        return
    for name in imports(path):
        other = part_of(name)
        assert other == own or LEVEL[other] <= LEVEL[own], f"{own} imports {other}"


def test_the_rule_sees_a_wrong_import(tmp_path: Path) -> None:
    wrong = tmp_path / "types.py"
    wrong.write_text("def f():\n    from scope_wm.data.store import Store\n")
    assert imports(wrong) == {"scope_wm.data.store"}
    assert LEVEL["data"] > LEVEL["types"]
