"""Writes the rows of a run into docs/performance.md, between two marks, so that the page quotes what a command printed."""
from .stats import cells, read_json

BEGIN, END = "<!-- begin: ./run bench --report -->", "<!-- end -->"
HEAD = ["bench", "value", "against", "its value", "ratio", "bar", "holds", ""]


def markdown_line(texts):
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def limits_text(limits):
    names = sorted(limits, key=lambda name: (limits[name]["unit"], name))
    return ", ".join(f"{name.replace('_', ' ')} {limits[name]['value']:g} {limits[name]['unit']}" for name in names)


def section(rows, source):
    """The Markdown lines of a run."""
    first = rows[0]
    lines = [f"From `{source}`: {first['processor']}, {first['cores']} cores, commit {first['commit']}, {first['time']}.", "",
             markdown_line(HEAD), markdown_line(["---"] * len(HEAD))]
    lines += [markdown_line(cells(row)) for row in rows]
    return lines + ["", f"Limits of the same run: {limits_text(first['limits'])}."]


def write(page, json_file, root):
    """Replaces the section of `page`; the rows of one page come from one machine and one commit."""
    rows = read_json(json_file)
    if not rows:
        raise ValueError(f"{json_file} holds no rows")
    for key in ("processor", "commit"):
        if len({row[key] for row in rows}) > 1:
            raise ValueError(f"{json_file} mixes runs: more than one {key}; a page quotes one run")
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{page} must hold the marks {BEGIN} and {END} once each")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    source = json_file.resolve().relative_to(root)
    page.write_text(f"{before}{BEGIN}\n" + "\n".join(section(rows, source)) + f"\n{END}{after}", encoding="utf-8")
