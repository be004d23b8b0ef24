"""`preflight list` and `preflight describe`: what checks and codes say about themselves."""

import argparse
from collections.abc import Callable, Mapping
from functools import partial

from preflight.core import words
from preflight.errors import CannotWork, UsageError
from preflight.planning import built_in, registry
from preflight.planning.built_in import CatalogEntry
from preflight.planning.registry import Check, Source


def list_checks(options: argparse.Namespace) -> int:
    known = built_in.listed()
    print(_row("check", "level", "by", "what is true on a sound machine"))
    for source in registry.sources(options.plugin).values():
        is_known = source.kind == "builtin" and source.id in known
        line = _line(known[source.id]) if is_known else told_of(source, lambda check: _line(built_in.of(check)))[0]
        print(words.plain(line))
    return 0


def _line(check: CatalogEntry) -> str:
    given = ", ".join(registry.how_to_set(f"{check.id}.{name}") for name in check.given)
    return _row(check.id, check.level, check.scope, f"{check.title}{given and f' [with {given}]'}")


def _row(check: str, level: str, scope: str, title: str) -> str:
    return f"{check:<22} {level:<9} {scope:<6} {title}"


def describe_code(options: argparse.Namespace) -> int:
    from preflight.core import renamed_codes
    from preflight.core.finding import OWN_SLUGS, RUN
    from preflight.planning import describe

    sources, what = registry.sources(options.plugin), renamed_codes.current(options.what)
    if what != options.what:
        print(words.plain(f"{options.what} is now {what}\n"))
    if what.startswith("preflight.rendezvous"):
        from preflight.rendezvous import codes

        print(describe.command_page(what, codes.FAMILY, codes.PURPOSE, codes.by_slug()))
        return 0
    if what.startswith("preflight.checkpoint"):
        from preflight.checkpoint import codes as of_checkpoint

        print(describe.command_page(what, of_checkpoint.FAMILY, of_checkpoint.PURPOSE, of_checkpoint.by_slug()))
        return 0
    if what.startswith("preflight.resume"):
        from preflight.resume import codes as of_resume

        print(describe.command_page(what, of_resume.FAMILY, of_resume.PURPOSE, of_resume.by_slug()))
        return 0
    if what.partition(".")[0] == "explain":
        from preflight.explain import pages

        print(pages.page(what))
        return 0
    if what.startswith(RUN) or what in OWN_SLUGS:
        print(describe.own_page(what) if what in OWN_SLUGS else describe.run_page())
        return 0
    family = [id_ for id_ in sources if id_.partition(".")[0] == what]
    id_ = what if what in sources else what.rpartition(".")[0]
    if id_ not in sources and not family:
        raise UsageError(f"{what}: there is no such check or code{registry.hint(what, sources)}")
    printed = [told_of(sources[id_], partial(_page, what, sources)) for id_ in family or [id_]]
    print(words.plain("\n".join(text for text, _ in printed)))
    return 0 if all(is_sound for _, is_sound in printed) else 1


def _page(what: str, sources: Mapping[str, Source], check: Check) -> str:
    """The page of the check or its code. Raises BrokenCheck if the check could not run with the others."""
    from preflight.engine.membership import STRANGERS
    from preflight.planning import describe, validation

    validation.refuse_unknown_ids(check.module, check.plan, {*sources, STRANGERS})
    return describe.page(check, check.id if what == check.id.partition(".")[0] else what)


def told_of(source: Source, tell: Callable[[Check], str]) -> tuple[str, bool]:
    """(what `tell` returns for a check, True), or (why it cannot be loaded, False). Raises CannotWork where
    the import of a plugin does not end."""
    if source.kind == "builtin":
        return tell(registry.load(source)), True
    from preflight.core.answer import Failure, FailureKind
    from preflight.engine import event_loop, loading

    loop = event_loop.EventLoop(loading.PLUGIN_S)
    answer = loading.ask_plugin(loop, source, lambda check: {"text": tell(check)})
    if isinstance(answer, Failure) and answer.kind is FailureKind.TIMED_OUT:
        raise CannotWork(f"--plugin {source.target}: {answer.text}; see what it does when it is imported")
    if isinstance(answer, Failure):
        return f"{source.id:<22} cannot be loaded: {answer.text}", False
    return str(answer.value["text"]), True
