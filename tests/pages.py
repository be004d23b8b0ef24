"""report.html as a reader of HTML sees it, without a browser."""

from html.parser import HTMLParser

FROM_ELSEWHERE = {"src", "srcset", "action", "formaction", "poster", "background", "ping"}
VOID = {"meta", "input", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Its elements, and the text that people see; the verdict's apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        """(element, name, value)"""
        self.text = self.verdict = ""
        self._open: list[str] = []
        self._in_verdict = False
        self.feed(text)
        assert self._open == [], f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._in_verdict |= ("id", "verdict") in attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        self._in_verdict &= tag != "header"

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["script"], ["style"]):
            self.text += data
            self.verdict += data if self._in_verdict else ""

    def values(self, tag: str, name: str) -> list[str]:
        return [value for its, own, value in self.attributes if (its, own) == (tag, name)]
