"""Supported versions: pyproject.toml, the environments of `make test-matrix` and the documents agree."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# PySpark modules that are private, or are named differently in another version. Only compat.py may use them.
OURS_ALONE = ("pyspark.sql.conversion", "pyspark.sql.pandas", "pyspark.version", "pyspark.util")


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")


def pinned(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines) if version}


def floors() -> dict[str, str]:
    """Return the lowest version that pyproject.toml allows for each dependency of the package and of its tests."""
    extras = PROJECT["project"]["optional-dependencies"]
    given = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["test"]]
    given += [one for each in extras.values() for one in each]
    found = (re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)", one) for one in given)
    return {canonical(match[1]): match[2] for match in found if match}


def environments() -> list[list[str]]:
    """Return the rows of .ci/matrix.txt: name, Python, pyspark, rest."""
    lines = (line.partition("#")[0].split() for line in (ROOT / ".ci/matrix.txt").read_text().splitlines())
    return [line for line in lines if line]


def as_numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".")]
    while numbers[-1:] == [0]:
        numbers.pop()
    return tuple(numbers)


def test_the_oldest_environment_has_every_package_at_the_floor_of_pyproject() -> None:
    tried = {name: as_numbers(version) for name, version in pinned(".ci/oldest.txt").items()}
    allowed = {name: as_numbers(version) for name, version in floors().items() if name != "pyspark"}
    assert tried == allowed


def test_the_documents_list_every_extra() -> None:
    table = (ROOT / "docs/reference/versions.md").read_text().partition("## Extras")[2]
    listed = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`([\w-]+)`", row)
    }
    assert listed == set(PROJECT["project"]["optional-dependencies"])


def test_every_minor_version_of_pyspark_that_pyproject_allows_is_tried_from_the_oldest_to_the_newest() -> None:
    (spark,) = (one for one in PROJECT["project"]["optional-dependencies"]["spark"] if one.startswith("pyspark"))
    assert spark.replace("[sql]", "") == "pyspark>=4.0,<4.4"
    assert {pyspark.rpartition(".")[0] for _, _, pyspark, _ in environments()} == {"4.0", "4.1", "4.2", "4.3"}
    assert ["4.0.0", "oldest"] in [one[2:] for one in environments()]
    assert [pinned("constraints.txt")["pyspark"], "newest"] in [one[2:] for one in environments()]


def test_compat_allows_the_pysparks_that_pyproject_allows() -> None:
    # Read as text because importing it would need Spark, which packaging tests do without.
    text = (ROOT / "client/acker_client/spark/compat.py").read_text()
    assert "OLDEST, NEWEST = (4, 0), (4, 3)" in text
    assert 'RANGE = "pyspark>=4.0,<4.4"' in text


def test_every_python_that_the_classifiers_name_is_tried() -> None:
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    tried = {python for _, python, _, _ in environments()}
    assert named
    assert set(named) <= tried


def test_the_page_of_versions_has_a_row_for_every_environment() -> None:
    text = (ROOT / "docs/reference/versions.md").read_text()
    place = re.search(r"<!-- versions.*?-->\n(.*?)<!-- end of versions -->", text, re.DOTALL)
    assert place is not None
    rows = re.findall(r"^\| `([\w.-]+)` \| ([\d.]+) \| ([\d.]+) \| (\w+)", place[1], re.MULTILINE)
    assert [list(row) for row in rows] == environments()


def test_compat_alone_asks_which_pyspark_is_here_or_uses_what_it_keeps_to_itself() -> None:
    found = {}
    for path in sorted((ROOT / "client").rglob("*.py")):
        tree = ast.parse(path.read_text())
        asks = {name for node in ast.walk(tree) for name in names_in(node) if name.startswith(OURS_ALONE)}
        if asks and path.name != "compat.py":
            found[path.name] = asks
    assert found == {}


def names_in(node: ast.AST) -> list[str]:
    """Return the modules that a node imports; "pyspark.version" if it asks for the version of pyspark."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Attribute) and node.attr == "__version__" and ast.unparse(node.value) == "pyspark":
        return ["pyspark.version"]
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("metadata.version"):
        return []
    if any(isinstance(one, ast.Constant) and one.value == "pyspark" for one in node.args):
        return ["pyspark.version"]
    return []
