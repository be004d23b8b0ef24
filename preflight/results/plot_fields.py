"""The plots of a saved report: what the page needs to draw them (core/plots.py)."""

from collections.abc import Callable, Mapping

from preflight.results import fields
from preflight.results.fields import Fields, refuse


def plot(value: object, place: str) -> dict[str, object]:
    """The plot as it is. Raises MalformedReport if it cannot be drawn."""
    data = Fields(value, place)
    data.text("title")
    _READ[data.choice("kind", tuple(_READ))](data)
    return data.data


def _chart(data: Fields) -> None:
    for name in ("x", "y", "log", "note"):
        data.text(name)
    for series in data.objects("series"):
        series.text("name"), series.text("role")
        series.list_of("points", _point)
        lengths = {len(point) for point in series.data["points"]}
        if len(lengths) > 1 or not lengths <= {2, 4}:
            refuse(series.data["points"], series.place_of("points"), "points of 2 numbers each, or of 4")
    if "marks" in data:
        data.list_of("marks", _mark)
    if "from_zero" in data:
        data.flag("from_zero")


def _point(value: object, place: str) -> list[float]:
    return fields.items(value, place, fields.number)


def _mark(value: object, place: str) -> None:
    at, name = fields.row(value, place, 2)
    fields.number(at, place)
    fields.text(name, place)


def _pair(value: object, place: str) -> list[str]:
    return fields.items(fields.row(value, place, 2), place, fields.text)


def _strips(data: Fields) -> None:
    count = len(data.list_of("subjects", _pair))
    if "of" in data:
        data.integer("of", 0)
    for strip in data.objects("strips"):
        strip.text("name"), strip.text("unit")
        if len(strip.list_of("values", _number_or_none)) != count:
            refuse(strip.data["values"], strip.place_of("values"), f"{count} values, one for each subject")
        strip.list_of("odd", _index_below(count))
        if "counts" in strip:
            strip.number("least"), strip.number("most")
            counts = strip.list_of("counts", _index_below(1 << 53))
            if not counts or not any(counts):
                refuse(counts, strip.place_of("counts"), "a histogram of some values")
        elif "of" in data:
            refuse(strip.data, strip.place, "counts, where not all subjects are named")


def _number_or_none(value: object, place: str) -> float | None:
    return None if value is None else fields.number(value, place)


def _index_below(count: int) -> Callable[[object, str], int]:
    def read(value: object, place: str) -> int:
        index = fields.integer(value, place)
        return index if 0 <= index < count else refuse(index, place, f"a number from 0 to {count - 1}")

    return read


def _heat_map(data: Fields) -> None:
    row, column = (_index_below(len(data.texts(name))) for name in ("rows", "columns"))
    data.text("unit"), data.number("usual"), data.number("limit")
    data.integer("binned", 1), data.integer("slow_cells", 0)
    flat, place = data.list_of("cells", fields.number), data.place_of("cells")
    if len(flat) % 3:
        refuse(flat, place, "row, column and value of each cell")
    for at in range(0, len(flat), 3):
        row(flat[at], place), column(flat[at + 1], place)
    data.list_of("slow", _slow_cell)


def _slow_cell(value: object, place: str) -> None:
    row, column, speed = fields.row(value, place, 3)
    fields.text(row, place), fields.text(column, place), fields.number(speed, place)


def _wiring(data: Fields) -> None:
    data.texts("nodes")
    index = _index_below(len(data.list_of("devices", _pair)))
    if not data.data["devices"]:
        refuse([], data.place_of("devices"), "some devices")

    def link(value: object, place: str) -> None:
        first, second, name = fields.row(value, place, 3)
        index(first, place), index(second, place), fields.text(name, place)

    data.list_of("links", link)
    data.list_of("odd", lambda value, place: fields.items(fields.row(value, place, 2), place, index))


def _table(data: Fields) -> None:
    data.text("note") if "note" in data else ""
    data.text("screen") if "screen" in data else ""
    columns = len(data.texts("heads"))
    data.list_of("rows", lambda value, place: fields.items(fields.row(value, place, columns), place, fields.text))


_READ: Mapping[str, Callable[[Fields], None]] = {
    "chart": _chart, "strips": _strips, "heatmap": _heat_map, "wiring": _wiring, "table": _table,
}  # fmt: skip
