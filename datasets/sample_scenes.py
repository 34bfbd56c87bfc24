"""Tables, plates and light around a dish, drawn large and reduced later."""

import math
import random
from collections.abc import Callable

from PIL import Image, ImageDraw, ImageFilter

Colour = tuple[int, int, int]
Dish = Callable[[ImageDraw.ImageDraw, float, random.Random], None]
"""Draws itself centred on the canvas, within the given radius in pixels."""

CANVAS = 288
"""Side in pixels of the scene, three times the default picture."""


def vary(colour: Colour, rng: random.Random, reach: int = 14) -> Colour:
    """Return a colour near the given one."""
    red, green, blue = (max(0, min(255, part + rng.randint(-reach, reach))) for part in colour)
    return red, green, blue


def mix(first: Colour, second: Colour, share: float) -> Colour:
    """Return the colour ``share`` of the way from the first to the second."""
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def disc(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float, colour: Colour) -> None:
    """Draw a filled circle."""
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def blob(
    x: float, y: float, radius: float, wobble: float, rng: random.Random, points: int = 40
) -> list[tuple[float, float]]:
    """Return the outline of a round shape whose radius wanders by a share ``wobble``."""
    waves = [(n, rng.uniform(0, math.tau), rng.uniform(0.3, 1.0) / n) for n in (2, 3, 4, 5, 7)]
    outline = []
    for index in range(points):
        angle = math.tau * index / points
        reach = 1 + wobble * sum(a * math.sin(n * angle + phase) for n, phase, a in waves)
        outline.append((x + radius * reach * math.cos(angle), y + radius * reach * math.sin(angle)))
    return outline


def turned(
    x: float, y: float, points: list[tuple[float, float]], angle: float
) -> list[tuple[float, float]]:
    """Turn points around the origin by an angle in radians, then move them to (x, y)."""
    cos, sin = math.cos(angle), math.sin(angle)
    return [(x + cos * px - sin * py, y + sin * px + cos * py) for px, py in points]


def scattered(count: int, radius: float, rng: random.Random) -> list[tuple[float, float]]:
    """Return points spread evenly over a disc around the canvas centre, not on a grid."""
    start, points = rng.uniform(0, math.tau), []
    for index in range(count):
        reach = radius * math.sqrt((index + rng.uniform(0.2, 0.8)) / count)
        angle = start + index * 2.39996 + rng.uniform(-0.3, 0.3)
        centre = CANVAS / 2
        points.append((centre + reach * math.cos(angle), centre + reach * math.sin(angle)))
    return points


def draw_scene(dish: Dish, rng: random.Random) -> Image.Image:
    """Draw a dish on a plate, board or bare table: RGB, CANVAS squared."""
    scene = _draw_table(rng)
    radius = CANVAS * rng.uniform(0.27, 0.40)
    layer = Image.new("RGBA", (CANVAS, CANVAS))
    draw = ImageDraw.Draw(layer)
    _draw_plate(draw, radius, rng)
    dish(draw, radius, rng)
    squeeze = rng.uniform(0.78, 1.0)
    layer = layer.rotate(rng.uniform(0, 360), Image.Resampling.BILINEAR)
    layer = layer.resize((CANVAS, round(CANVAS * squeeze)), Image.Resampling.BILINEAR)
    reach = CANVAS // 12
    place = (
        rng.randint(-reach, reach),
        (CANVAS - layer.height) // 2 + rng.randint(-reach, reach),
    )
    shadow = Image.new("L", (CANVAS, CANVAS))
    offset = rng.randint(-10, 10), rng.randint(4, 12)
    shadow.paste(layer.getchannel("A"), (place[0] + offset[0], place[1] + offset[1]))
    shadow = shadow.filter(ImageFilter.GaussianBlur(7)).point(lambda level: level * 0.45)
    scene.paste((20, 16, 14), mask=shadow)
    scene.paste(layer, place, layer)
    return _light(scene, rng)


def _draw_table(rng: random.Random) -> Image.Image:
    """Wood, cloth, slate, marble or paper."""
    kind = rng.choice(("wood", "cloth", "slate", "marble", "plain"))
    bases: dict[str, list[Colour]] = {
        "wood": [(150, 104, 66), (98, 64, 42), (196, 158, 112)],
        "cloth": [(196, 62, 58), (70, 104, 150), (108, 140, 92), (222, 206, 176)],
        "slate": [(66, 70, 76), (44, 46, 50)],
        "marble": [(222, 220, 216), (190, 194, 198)],
        "plain": [(232, 196, 120), (150, 186, 184), (208, 152, 142), (120, 96, 120)],
    }
    base = vary(rng.choice(bases[kind]), rng, 18)
    table = Image.new("RGB", (CANVAS * 3 // 2, CANVAS * 3 // 2), base)
    draw, side = ImageDraw.Draw(table), table.width
    dark, bright = mix(base, (0, 0, 0), 0.22), mix(base, (255, 255, 255), 0.25)
    if kind == "wood":
        for _ in range(90):
            y, shade = rng.uniform(0, side), mix(base, rng.choice((dark, bright)), rng.random() / 2)
            wave = [(x, y + 5 * math.sin(x / 60 + y)) for x in range(0, side + 20, 20)]
            draw.line(wave, fill=shade, width=rng.randint(1, 4))
        for plank in range(0, side, rng.randint(60, 110)):
            draw.line((0, plank, side, plank), fill=mix(base, (0, 0, 0), 0.5), width=3)
    elif kind == "cloth":
        step, other = rng.choice((18, 28, 40)), rng.choice((bright, (236, 232, 222)))
        for start in range(0, side, 2 * step):
            draw.rectangle((start, 0, start + step, side), fill=mix(base, other, 0.5))
        if rng.random() < 0.6:
            for start in range(0, side, 2 * step):
                draw.rectangle((0, start, side, start + step // 2), fill=mix(base, other, 0.8))
    else:
        for _ in range({"slate": 400, "marble": 26, "plain": 60}[kind]):
            x, y = rng.uniform(0, side), rng.uniform(0, side)
            shade = mix(base, rng.choice((dark, bright)), rng.uniform(0.1, 0.5))
            if kind == "marble":
                vein = [(x + 26 * n, y + 14 * n + rng.uniform(-18, 18)) for n in range(8)]
                draw.line(vein, fill=shade, width=rng.randint(1, 4))
            else:
                disc(draw, x, y, rng.uniform(1, 3 if kind == "slate" else 26), shade)
    table = table.rotate(rng.uniform(0, 360))  # the blur below hides the steps
    corner = (table.width - CANVAS) // 2
    table = table.crop((corner, corner, corner + CANVAS, corner + CANVAS))
    return table.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 2.5)))


def _draw_plate(draw: ImageDraw.ImageDraw, radius: float, rng: random.Random) -> None:
    centre = CANVAS / 2
    kind = rng.choice(("plate", "plate", "board", "none"))
    if kind == "plate":
        tones: list[Colour] = [(244, 242, 236), (226, 228, 232), (60, 62, 70), (94, 132, 150)]
        tone = vary(rng.choice(tones), rng, 8)
        outer = min(radius * rng.uniform(1.15, 1.3), centre - 4)
        disc(draw, centre, centre, outer, tone)
        disc(draw, centre, centre, outer * 0.97, mix(tone, (255, 255, 255), 0.3))
        disc(draw, centre, centre, outer * 0.76, mix(tone, (0, 0, 0), 0.12))
        disc(draw, centre, centre, outer * 0.73, tone)
    elif kind == "board":
        tone = vary((186, 140, 92), rng)
        half = min(radius * 1.12, centre - 6)
        box = (centre - half, centre - half * 0.98, centre + half, centre + half * 0.98)
        draw.rounded_rectangle(box, radius=half * rng.uniform(0.1, 0.4), fill=tone)
        for _ in range(9):
            y = centre + rng.uniform(-half, half) * 0.85
            draw.line((centre - half * 0.9, y, centre + half * 0.9, y + rng.uniform(-4, 4)),
                      fill=mix(tone, (70, 40, 20), 0.25), width=2)  # fmt: skip


def _light(scene: Image.Image, rng: random.Random) -> Image.Image:
    """Warm or cool light that falls off across the scene."""
    tint = rng.choice(((255, 214, 160), (255, 255, 255), (190, 214, 255)))
    scene = Image.blend(scene, Image.new("RGB", scene.size, tint), rng.uniform(0.0, 0.12))
    fall = Image.linear_gradient("L").rotate(rng.choice((0, 90, 180, 270)))
    fall = fall.resize(scene.size).point(lambda level: level * 0.4)
    scene.paste((16, 12, 18), mask=fall)
    return scene
