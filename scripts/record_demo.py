"""Record `instep demo` on a pseudo-terminal and render the recording as an animated SVG.

    python -m scripts.record_demo record demo.cast          # runs the demo, about 90 seconds
    python -m scripts.record_demo render demo.cast docs/images/demo.svg

A recording is a file of JSON lines in asciinema's format, version 2: a header, then one line for
each piece of output with the seconds since the start. Rendering reads nothing but the recording,
so the same recording gives the same bytes.

The SVG is a film strip. Every frame is a group beside the one before it, and one CSS animation
moves the strip. A line of text that appears in several frames is defined once and referenced.
"""

from __future__ import annotations

import argparse
import fcntl
import html
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte

COLUMNS, LINES = 100, 30
PLAYED_S = 16.0  # the whole recording is scaled to this
HELD_S = 4.0  # and its last frame is shown for this long
FRAMES_PER_S = 4
CELL_WIDTH, CELL_HEIGHT, MARGIN, TITLE_HEIGHT = 8.4, 18, 12, 28
BACKGROUND, FOREGROUND, DIMMED = "#11161d", "#d5dbe3", "#7d8794"
COLOURS = {
    "black": "#3b4350",
    "red": "#f2777a",
    "green": "#7fc98b",
    "brown": "#e6c07b",
    "blue": "#6cb2f5",
    "magenta": "#d29bd8",
    "cyan": "#66c7cf",
    "white": FOREGROUND,
    "brightblack": DIMMED,
}


class Style(NamedTuple):
    """How a run of characters looks."""

    colour: str
    bold: bool


class Frame(NamedTuple):
    """A screen and the second of the playback from which it is shown."""

    at_s: float
    rows: tuple[str, ...]  # SVG markup of each row; "" for an empty one


def record(command: list[str], recording: Path) -> int:
    """Run the command on a terminal, write its output with times, and return its exit status."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "TERM": "xterm-256color", "PATH": programs}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    with tempfile.TemporaryDirectory() as folder, recording.open("w", encoding="utf-8") as file:
        header = {"version": 2, "width": COLUMNS, "height": LINES, "title": "instep demo"}
        file.write(json.dumps(header) + "\n")
        begun = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        while output := _read(ours, process):
            text = output.decode("utf-8", "replace")
            elapsed_s = round(time.monotonic() - begun, 3)
            file.write(json.dumps([elapsed_s, "o", text], ensure_ascii=False) + "\n")
        os.close(ours)
        return process.wait()


def _read(terminal: int, process: subprocess.Popen[bytes]) -> bytes:
    """Return the next output, or nothing once the process has ended."""
    while True:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                return os.read(terminal, 65536)
            except OSError:  # the process has closed its side
                return b""
        if process.poll() is not None:
            return b""


def render(recording: str) -> str:
    """Return the recording as an animated SVG."""
    header, *lines = recording.splitlines()
    frames = _frames(json.loads(header), [json.loads(line) for line in lines])
    width = COLUMNS * CELL_WIDTH + 2 * MARGIN
    height = LINES * CELL_HEIGHT + 2 * MARGIN + TITLE_HEIGHT
    total_s = PLAYED_S + HELD_S
    ids = {row: f"r{number}" for number, row in enumerate(_distinct_rows(frames))}
    definitions = "".join(f'<g id="{id_}">{row}</g>' for row, id_ in ids.items())
    steps = "".join(
        f"{frame.at_s / total_s:.2%}{{transform:translateX(-{number * width:g}px)}}"
        for number, frame in enumerate(frames)
    )
    last = f"translateX(-{(len(frames) - 1) * width:g}px)"
    strip = "".join(_frame(frame, number * width, ids) for number, frame in enumerate(frames))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
        f' role="img" aria-label="Recording of instep demo">\n'
        f"<style>text{{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"fill:{FOREGROUND}}}.b{{font-weight:bold}}"
        f".film{{animation:play {total_s:g}s step-end infinite}}"
        f"@keyframes play{{{steps}100%{{transform:{last}}}}}"
        f"@media (prefers-reduced-motion){{.film{{animation:none;transform:{last}}}}}</style>\n"
        f"<defs>{definitions}</defs>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>'
        f'<circle cx="20" cy="18" r="5" fill="#f2777a"/><circle cx="38" cy="18" r="5"'
        f' fill="#e6c07b"/><circle cx="56" cy="18" r="5" fill="#7fc98b"/>'
        f'<text x="80" y="22" style="fill:{DIMMED}">$ instep demo</text>\n'
        f'<g class="film">{strip}</g>\n</svg>\n'
    )


def _frames(header: dict[str, int], output: list[tuple[float, str, str]]) -> list[Frame]:
    """Play the recording on an emulated terminal and sample its screen at an even rate."""
    screen = pyte.Screen(header["width"], header["height"])
    stream = pyte.Stream(screen)
    scale = PLAYED_S / max(output[-1][0], 0.001)
    frames = [Frame(0.0, _rows(screen))]
    due_s = 1 / FRAMES_PER_S
    for at_s, _, text in output:
        while at_s * scale >= due_s:
            _add(frames, Frame(due_s, _rows(screen)))
            due_s += 1 / FRAMES_PER_S
        stream.feed(text)
    _add(frames, Frame(PLAYED_S, _rows(screen)))
    return frames


def _add(frames: list[Frame], frame: Frame) -> None:
    if frame.rows != frames[-1].rows:
        frames.append(frame)


def _rows(screen: pyte.Screen) -> tuple[str, ...]:
    return tuple(_row(screen, number) for number in range(screen.lines))


def _row(screen: pyte.Screen, number: int) -> str:
    """Return one row of the screen as text elements.

    A run ends where the style changes and where two spaces follow each other, because viewers
    differ in what they do with spaces.
    """
    cells = [screen.buffer[number][column] for column in range(screen.columns)]
    runs = []
    column = 0
    for style, members in groupby(cells, key=_style):
        text = "".join(cell.data for cell in members)
        runs += [
            _run(words[0], column + words.start(), style)
            for words in re.finditer(r"\S+(?: \S+)*", text)
        ]
        column += len(text)
    return "".join(runs)


def _style(cell: pyte.screens.Char) -> Style:
    colour = COLOURS.get(cell.fg, FOREGROUND if cell.fg == "default" else f"#{cell.fg}")
    return Style(colour, cell.bold)


def _run(text: str, column: int, style: Style) -> str:
    """Fix the run's width, so that columns stay aligned whatever font the viewer has."""
    colour = "" if style.colour == FOREGROUND else f' style="fill:{style.colour}"'
    bold = ' class="b"' if style.bold else ""
    return (
        f'<text x="{MARGIN + column * CELL_WIDTH:g}" textLength="{len(text) * CELL_WIDTH:g}"'
        f"{bold}{colour}>{html.escape(text, quote=False)}</text>"
    )


def _distinct_rows(frames: list[Frame]) -> list[str]:
    return list(dict.fromkeys(row for frame in frames for row in frame.rows if row))


def _frame(frame: Frame, left: float, ids: dict[str, str]) -> str:
    top = TITLE_HEIGHT + MARGIN
    uses = "".join(
        f'<use href="#{ids[row]}" y="{top + (number + 1) * CELL_HEIGHT - 5}"/>'
        for number, row in enumerate(frame.rows)
        if row
    )
    return f'<g transform="translate({left:g})">{uses}</g>'


def main() -> int:
    """Record or render, as the arguments say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="run the demo and write a recording")
    recorder.add_argument("recording", type=Path)
    renderer = commands.add_parser("render", help="turn a recording into an SVG")
    renderer.add_argument("recording", type=Path)
    renderer.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        arguments.recording.parent.mkdir(parents=True, exist_ok=True)
        return record(["instep", "demo"], arguments.recording.resolve())
    picture = render(arguments.recording.read_text(encoding="utf-8"))
    arguments.picture.write_text(picture, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
