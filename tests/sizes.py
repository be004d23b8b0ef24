"""`make sizes`: lines of Python of the product, by folder, and its largest functions and files."""

import ast
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("preflight", "checks", "train_smoke")
FUNCTION_LINES, FILE_LINES = 60, 400
"""Limits, held by tests/test_size.py."""
LONG_FILE_LINES = 200
"""Most files are shorter: CONTRIBUTING.md."""
LISTED = 10


def product_files() -> list[Path]:
    return sorted(path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def folder(path: Path) -> str:
    """The room or the family of checks: `preflight`, `preflight/explain`, `checks/comm`, however deep the file lies."""
    return "/".join(path.relative_to(ROOT).parts[:-1][:2])


def file_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines from the first decorator to the end) of every function and method."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield node.name, first, (node.end_lineno or first) - first + 1


def function_lines(paths: Sequence[Path]) -> dict[str, int]:
    """Lines of every function, by `file:line name`."""
    return {
        f"{relative(path)}:{line} {function}": lines
        for path in paths
        for function, line, lines in functions(path.read_text())
    }


def over(lines: Mapping[str, int], limit: int) -> dict[str, int]:
    """Those above the limit, the largest first."""
    return {key: lines[key] for key in sorted(lines, key=lambda key: (-lines[key], key)) if lines[key] > limit}


def _show(lines: Mapping[str, int]) -> None:
    for key, count in list(lines.items())[:LISTED]:
        print(f"{count:>8,}  {key}")


def main() -> None:
    paths = product_files()
    files = {relative(path): file_lines(path) for path in paths}
    folders: Counter[str] = Counter()
    for path in paths:
        folders[folder(path)] += files[relative(path)]
    print(f"{folders.total():,} lines of Python in {len(files)} files")
    for key, count in sorted(folders.items()):
        print(f"{count:>8,}  {key}")
    lengths = function_lines(paths)
    p90 = statistics.quantiles(lengths.values(), n=10)[-1]
    print(
        f"{len(lengths):,} functions: median {statistics.median(lengths.values()):.0f} lines, p90 {p90:.0f}, "
        f"max {max(lengths.values())} (limit {FUNCTION_LINES}); the {LISTED} longest:"
    )
    _show(over(lengths, 0))
    for limit in (FILE_LINES, LONG_FILE_LINES):
        print(f"{len(over(files, limit))} files over {limit} lines")
    print(f"the {LISTED} longest:")
    _show(over(files, 0))


if __name__ == "__main__":
    main()
