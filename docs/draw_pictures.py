# SPDX-License-Identifier: Apache-2.0
"""Draws pictures of README.md and docs/ into docs/images/.

  python3 docs/draw_pictures.py

Each is drawn twice, for light and for dark pages. method_light.svg and files_light.svg
are edited by hand; this makes the dark ones of them. curves_*.svg are those of the two
runs of docs/metrics.md; commit 8d614726 has the code that drew them.
"""

import math
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
BY_HAND = "method", "files"
CHARACTER = 9.0  # width at the size below
FONT = (
    'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" '
    'font-size="15"'
)
SANS = (
    "font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif\" "
    'font-size="14"'
)


class Colours(NamedTuple):
    """The colours of a page."""

    text: str
    faint: str
    token: str  # background of a token
    generator: str
    discriminator: str
    page: str


PAGES = {
    "light": Colours("#1f2328", "#6e7781", "#eef1f4", "#c2571a", "#1f6fc4", "#ffffff"),
    "dark": Colours("#e6edf3", "#8b949e", "#21262d", "#f0883e", "#58a6ff", "#0d1117"),
}

# What the discriminator of examples/novels_model is shown: text, the replaced word,
# the original one.
TEXTS = (
    ("She opened the door, and the old man came in.", "", ""),
    ("The captain lit his pipe and looked out of the because.", "because", "window"),
    ("She took a cup of were and sat down by the fire.", "were", "tea"),
    ("The two men walked along the road in the they.", "they", "rain"),
    ("He took off his hat and sat down in the said.", "said", "chair"),
    ("The old man gave her a cup of house.", "house", "tea"),
)

# docs/measurements/blimp.md: (minutes of one core, percent).
BLIMP = {
    "masked LM, 1 M words": [(3.7, 54.78), (7.9, 56.3), (14.3, 57.26), (28.8, 58.54)],
    "masked LM, 10 M words": [(6.1, 57.04), (52.4, 58.95)],
    "two towers, 10 M words": [(7.4, 57.28), (51.5, 60.68)],
}
PUBLISHED = "published after 1 M words", 61.19


def text(x, y, words, colour, look=SANS, anchor="middle") -> str:
    """A line of text, centred at a height."""
    return (
        f'<text x="{x:.1f}" y="{y + 5:.1f}" fill="{colour}" text-anchor="{anchor}" '
        f"{look}>{escape(words)}</text>"
    )


def token(x, y, words, fill, colour, opacity) -> str:
    """A word in a box, x being the left edge; its width is `width_of`."""
    width = width_of(words)
    return (
        f'<rect x="{x:.1f}" y="{y - 14:.1f}" width="{width:.1f}" height="28" rx="6" '
        f'fill="{fill}" fill-opacity="{opacity:.2f}" stroke="none"/>'
        f'<text x="{x + 8:.1f}" y="{y + 5:.1f}" fill="{colour}" {FONT} '
        f'textLength="{CHARACTER * len(words):.1f}">{escape(words)}</text>'
    )


def width_of(words: str) -> float:
    """The width of a token's box."""
    return CHARACTER * len(words) + 16


def draw_schedules(page: Colours) -> Iterator[str]:
    """The learning rate of a run with a tenth of warm-up, by `schedule`.

    The polynomial has lr_decay_power 2; with 1, the default, it is linear.
    """
    from electra_tf import PretrainingConfig
    from electra_tf.train.optimization import learning_rate_schedule

    steps, left, width, high = 200, 40, 150, 70
    names = ("original", "linear", "polynomial", "wsd", "constant")
    for number, name in enumerate(names):
        config = PretrainingConfig(
            schedule=name,
            num_train_steps=steps,
            num_warmup_steps=steps // 10,
            lr_decay_power=2.0 if name == "polynomial" else 1.0,
        )
        rate, peak = learning_rate_schedule(config), config.learning_rate
        x0, y0 = left + number * (width + 20), 110
        shares = {step: float(rate(step)) / peak for step in range(0, steps + 1, 4)}
        points = [
            f"{x0 + width * step / steps:.1f},{y0 - high * share:.1f}"
            for step, share in shares.items()
        ]
        yield text(x0 + width / 2, 20, name, page.text, look=FONT)
        yield (
            f'<path d="M{x0},{y0 - high - 6} V{y0} H{x0 + width}" '
            f'stroke="{page.faint}" fill="none"/>'
            f'<polyline points="{" ".join(points)}" stroke="{page.discriminator}" '
            'stroke-width="2" fill="none"/>'
        )
        yield text(x0 + width / 2, y0 + 16, "step", page.faint)
    yield text(left - 8, 110 - high, "peak", page.faint, anchor="end")


def draw_detection(page: Colours) -> Iterator[str]:
    """What the discriminator of examples/novels_model finds in TEXTS."""
    import electra_tf

    def shade(x, y, words, probability):
        strong = probability > 0.5
        fill = page.generator if probability > 0.1 else page.token
        opacity = probability if probability > 0.1 else 1.0
        return token(x, y, words, fill, page.page if strong else page.text, opacity)

    model = electra_tf.load(str(ROOT / "examples" / "novels_model"))
    yield text(20, 24, "probability of a replacement", page.faint, anchor="start")
    for number in range(1, 6):
        yield shade(180 + 46 * number, 24, f"{number / 5:.1f}", number / 5)
    yield text(840, 24, "the underlined word replaced", page.faint, anchor="end")
    rows = zip(TEXTS, model.detect([row[0] for row in TEXTS]), strict=True)
    for line, ((_, replaced, original), tokens) in enumerate(rows):
        x, y, verdict = 20.0, 66 + 38 * line, "nothing"
        for each in tokens:
            yield shade(x, y, each.text, each.probability)
            if each.text == replaced:
                end = "caught" if each.probability > 0.5 else "missed"
                verdict = f"{original}: {end}, {each.probability:.2f}"
                width = width_of(each.text) - 8
                yield (
                    f'<path d="M{x + 4:.1f},{y + 17} h{width:.1f}" '
                    f'stroke="{page.text}" stroke-width="2"/>'
                )
            x += width_of(each.text) + 4
        yield text(840, y, verdict, page.text, anchor="end")


def draw_blimp(page: Colours) -> Iterator[str]:
    """Score against minutes, the minutes in logarithms."""
    left, bottom, width, height, lowest, highest = 50, 250, 440, 220, 54, 62

    def place(minutes, percent):
        share = (percent - lowest) / (highest - lowest)
        return left + width * math.log2(minutes / 3) / 5, bottom - height * share

    for percent in range(lowest, highest + 1, 2):
        _, y = place(3, percent)
        yield f'<path d="M{left},{y} h{width}" stroke="{page.token}"/>'
        yield text(left - 20, y, str(percent), page.faint)
    for minutes in (3, 6, 12, 24, 48, 96):
        yield text(place(minutes, 54)[0], bottom + 16, str(minutes), page.faint)
    yield text(left + width / 2, bottom + 38, "minutes of one core", page.faint)
    name, percent = PUBLISHED
    end, y = place(96, percent)
    look = f'stroke="{page.text}" stroke-dasharray="4"'
    yield f'<path d="M{left},{y:.1f} H{end}" {look}/>'
    yield text(end + 10, y, name, page.text, anchor="start")
    colours = page.discriminator, page.faint, page.generator
    ends = []
    for (name, points), colour in zip(BLIMP.items(), colours, strict=True):
        places = [place(*point) for point in points]
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        look = f'stroke="{colour}" stroke-width="2" fill="none"'
        yield f'<polyline points="{shown}" {look}/>'
        for x, y in places:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
        ends.append((places[-1][1], name, colour))
    for number, (_, name, colour) in enumerate(sorted(ends)):
        yield text(end + 10, 110 + 24 * number, name, colour, anchor="start")


def save(name: str, size: tuple[int, int], title: str, draw: Callable) -> None:
    """Writes a picture for light and for dark pages."""
    width, height = size
    for scheme, page in PAGES.items():
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            *draw(page),
            "</svg>\n",
        ]
        (IMAGES / f"{name}_{scheme}.svg").write_text("\n".join(lines))


def darken(name: str) -> None:
    """Writes the dark picture of a light one that is edited by hand."""
    drawn = (IMAGES / f"{name}_light.svg").read_text()
    for light, dark in zip(PAGES["light"], PAGES["dark"], strict=True):
        drawn = drawn.replace(light, dark)
    (IMAGES / f"{name}_dark.svg").write_text(drawn)


if __name__ == "__main__":
    for name in BY_HAND:
        darken(name)
    save("schedules", (900, 140), "Learning-rate schedules", draw_schedules)
    save("detect", (860, 280), "Replaced words, caught and missed", draw_detection)
    save("blimp", (780, 300), "BLiMP after minutes of training", draw_blimp)
