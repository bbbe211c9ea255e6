"""The parts of verdicts that the code of the lab's claims can record, read from its source.

A part is recorded by `trial.statement`, `trial.control` or `trial.limit`. Its text is a literal, or
has fields that are only known when the experiment runs. Those become wildcards.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import instep_lab
from instep_lab import integrity
from instep_lab.claim import Claim
from instep_lab.verdict import Role, VerdictPart

ROOT = Path(instep_lab.__file__).parent
ROLES = frozenset(role.value for role in Role)
ANY = ".+"


@dataclass(frozen=True, order=True)
class PartPattern:
    """A part that a claim can record: role, a pattern of its statement, and whether of a client."""

    role: str
    statement: str
    of_client: bool

    @property
    def is_open(self) -> bool:
        """Whether the code does not say anything about the text."""
        return self.statement == ANY

    def is_about(self, text: str) -> bool:
        """Return whether it is the pattern of this text alone."""
        return self.statement == re.escape(text)

    def is_about_texts_like(self, text: str) -> bool:
        """Return whether it can be the pattern of a text in which * stands for anything."""
        return re.fullmatch(self.statement, text.replace("*", "x")) is not None or (
            "*" in text and fnmatch.fnmatchcase(_literal(self.statement), text)
        )

    def matches(self, part: VerdictPart) -> bool:
        return (
            self.role == part.role.value
            and self.of_client == bool(part.client)
            and re.fullmatch(self.statement, part.statement) is not None
        )


def _literal(pattern: str) -> str:
    """Return a text that a pattern matches, with x for whatever it leaves open."""
    return re.sub(r"\\(.)", r"\1", pattern.replace(".*", "x"))


Named = tuple[str, str]  # a module of the claims, and a function or class in it


@dataclass
class _Function:
    """A function of the claims: the parts that it records, and the functions that it names."""

    patterns: list[PartPattern] = field(default_factory=list)
    names: set[Named] = field(default_factory=set)


def of_claims(known: Mapping[str, Claim]) -> dict[str, list[PartPattern]]:
    """Return the parts that each claim can record."""
    functions = _functions()
    always = [
        PartPattern(Role.CONTROL.value, re.escape(text), of_client=False)
        for text in (integrity.CLIENTS_CHECKED, integrity.LOG_CHECKED)
    ]
    return {
        id_: [
            *_reachable(
                functions,
                (claim.experiment.__module__.rpartition(".")[2], claim.experiment.__name__),
            ),
            *always,
        ]
        for id_, claim in known.items()
    }


def _functions() -> dict[Named, list[_Function]]:
    """Return the functions of the claims; a class stands for its methods."""
    found: dict[Named, list[_Function]] = {}
    for file in sorted((ROOT / "claims").glob("*.py")):
        module = ast.parse(file.read_text(encoding="utf-8"))
        constants = dict(_assigned(module.body))
        imported = dict(_imported(module))
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[file.stem, node.name] = [
                    _read(one, file.stem, constants, imported) for one in _own_functions(node)
                ]
    return found


def _imported(module: ast.Module) -> Iterator[tuple[str, Named]]:
    """Yield the names that a module imports from other modules of the claims."""
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "instep_lab.claims."
        ):
            for one in node.names:
                yield one.name, ((node.module or "").rpartition(".")[2], one.name)


def _own_functions(node: ast.stmt) -> Iterator[ast.FunctionDef]:
    if isinstance(node, ast.FunctionDef):
        yield node
    elif isinstance(node, ast.ClassDef):
        for one in node.body:
            yield from _own_functions(one)


def _reachable(functions: Mapping[Named, list[_Function]], first: Named) -> list[PartPattern]:
    seen, waiting = set[Named](), [first]
    patterns: list[PartPattern] = []
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for function in functions.get(current, ()):
            patterns += function.patterns
            waiting += function.names & functions.keys()
    return patterns


def _read(
    function: ast.FunctionDef,
    module: str,
    constants: Mapping[str, ast.expr],
    imported: Mapping[str, Named],
) -> _Function:
    values: dict[str, list[ast.expr]] = {name: [value] for name, value in constants.items()}
    for name, value in _assigned(ast.walk(function)):
        values.setdefault(name, []).append(value)
    unknown = {one.arg for one in function.args.args} | _looped(function)
    found = _Function()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            found.names.add(imported.get(node.id, (module, node.id)))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.names.add((node.value.id, node.attr))
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of_trial = isinstance(node.func.value, ast.Name) and node.func.value.id == "trial"
        if of_trial and node.func.attr in ROLES and node.args:
            of_client = any(one.arg == "client" for one in node.keywords)
            for text in _patterns(node.args[0], values, unknown):
                found.patterns.append(PartPattern(node.func.attr, text, of_client))
    return found


def _assigned(nodes: object) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:  # type: ignore[attr-defined]
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _looped(function: ast.FunctionDef) -> set[str]:
    """Return the variables of loops and comprehensions, whose values the code does not show."""
    targets = [
        node.target for node in ast.walk(function) if isinstance(node, ast.For | ast.comprehension)
    ]
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def _patterns(text: ast.expr, values: Mapping[str, list[ast.expr]], unknown: set[str]) -> list[str]:
    match text:
        case ast.Constant(value=str(value)):
            return [re.escape(value)]
        case ast.JoinedStr(values=pieces):
            return ["".join(_piece(piece) for piece in pieces)]
        case ast.Name(id=name) if name in values and name not in unknown:
            return [one for value in values[name] for one in _patterns(value, values, unknown)]
        case _:
            return [ANY]


def _piece(piece: ast.expr) -> str:
    if isinstance(piece, ast.Constant):
        return re.escape(str(piece.value))
    return ".*"
