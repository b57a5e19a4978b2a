"""Tasks that start when others end: whom they may name, and in which order that puts them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache

from tickdown.base.suggestions import suggestion

_MOST_NAMES = 12  # of a circle, in a message


def chain_problems(
    after: Mapping[str, Collection[str]], usable: Collection[str], ids: Collection[str], nameless: int
) -> dict[str, list[tuple[str, bool]]]:
    """What is wrong with `after`, and whether it is only a warning, by lower-case id of the task. `after` are the names that
    tasks come after, by id; `usable` the ids of all tasks that can run, `ids` those of rejected files too. `nameless` is the
    number of files whose ids nobody can tell: a name that is not found may be in one of them."""
    written = {name.lower(): name for name in usable}
    known = {name.lower() for name in ids}
    links = {task_id.lower(): [name.lower() for name in names] for task_id, names in after.items()}
    graph = {name: [other for other in links.get(name, ()) if other in written] for name in _reached(links, written)}
    problems: dict[str, list[tuple[str, bool]]] = {}
    for cycle in _circles(graph):
        for start, step in enumerate(cycle):
            shown = [cycle[(start + ahead) % len(cycle)] for ahead in range(min(len(cycle), _MOST_NAMES))]
            message = _circle_message([written[other] for other in shown], len(cycle))
            problems.setdefault(step, []).append((message, False))
    near = cache(lambda name: suggestion(name, ids))
    for task_id, names in after.items():
        unknown = next((name for name in names if name.lower() not in known), None)
        if unknown is not None:
            there_is_none = (f"there is no task {unknown!r}{near(unknown)}", False)
            problem = (not_accepted(unknown, nameless), True) if nameless else there_is_none
            problems.setdefault(task_id.lower(), []).append(problem)
    return problems


def not_accepted(name: str, nameless: int) -> str:
    where = "the rejected file" if nameless == 1 else f"one of the {nameless} rejected files"
    return f"no accepted task has the id {name!r}; it may be in {where}"


def _reached(links: Mapping[str, list[str]], written: Collection[str]) -> set[str]:
    """The tasks that have to do with a chain at all."""
    return {name for task_id, names in links.items() for name in (task_id, *names) if name in written}


def _circle_message(names: list[str], length: int) -> str:
    rest = [f"… ({length} in all)"] if length > len(names) else []
    return f"goes in a circle: {' → '.join([*names, *rest, names[0]])} (each starts after the next)"


def _circles(graph: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Circles that, together, have every task in them that is in one. First the loose ends are taken off on both sides,
    so that a long chain costs no more than its length."""
    left = _turned(_without_ends(_turned(_without_ends(graph))))
    seen: set[str] = set()
    for start in left:
        if start not in seen and (cycle := _way_back(start, left)):
            seen.update(cycle)
            yield cycle


def _without_ends(graph: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Take away, again and again, whoever leads to nobody that is left."""
    leading_to = _turned(graph)
    ways = {step: len(following) for step, following in graph.items()}
    ends = [step for step, count in ways.items() if count == 0]
    for end in ends:
        for step in leading_to[end]:
            ways[step] -= 1
            if ways[step] == 0:
                ends.append(step)
    return {step: [other for other in graph[step] if ways[other]] for step in graph if ways[step]}


def _turned(graph: Mapping[str, list[str]]) -> dict[str, list[str]]:
    turned: dict[str, list[str]] = {step: [] for step in graph}
    for step, following in graph.items():
        for other in following:
            turned[other].append(step)
    return turned


def _way_back(start: str, graph: Mapping[str, list[str]]) -> list[str] | None:
    """The shortest way from a task over `after` back to itself."""
    came_from: dict[str, str] = {}
    todo = [start]
    for step in todo:
        for following in graph[step]:
            if following == start:
                way = [step]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if following not in came_from:
                came_from[following] = step
                todo.append(following)
    return None
