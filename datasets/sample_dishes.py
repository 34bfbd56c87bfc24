"""The five dishes of the sample; each draws itself within a radius around the canvas centre."""

import math
import random

from PIL import ImageDraw

from datasets.sample_scenes import (
    CANVAS,
    Colour,
    Dish,
    blob,
    disc,
    mix,
    scattered,
    turned,
    vary,
)

_C = CANVAS / 2
_SPRINKLES: list[Colour] = [
    (250, 240, 120), (240, 96, 120), (110, 190, 230), (250, 250, 250), (130, 206, 110),
]  # fmt: skip


def _pizza(draw: ImageDraw.ImageDraw, radius: float, rng: random.Random) -> None:
    """Crust, sauce, cheese, round slices and leaves; sometimes a piece is missing."""
    crust = vary((204, 150, 84), rng)
    draw.polygon(blob(_C, _C, radius, 0.03, rng), fill=mix(crust, (90, 50, 20), 0.35))
    draw.polygon(blob(_C, _C, radius * 0.96, 0.03, rng), fill=crust)
    for x, y in scattered(14, radius, rng):
        if math.hypot(x - _C, y - _C) > radius * 0.84:
            disc(draw, x, y, radius * 0.05, mix(crust, (70, 34, 14), 0.5))
    draw.polygon(blob(_C, _C, radius * 0.83, 0.04, rng), fill=vary((186, 54, 34), rng))
    cheese = vary((242, 206, 116), rng)
    for x, y in scattered(rng.randint(12, 22), radius * 0.74, rng):
        size = radius * rng.uniform(0.12, 0.22)
        draw.polygon(blob(x, y, size, 0.15, rng, 18), fill=vary(cheese, rng))
    topping = rng.choice(((172, 44, 36), (232, 226, 206), (52, 46, 50)))
    for x, y in scattered(rng.randint(6, 11), radius * 0.68, rng):
        size = radius * rng.uniform(0.1, 0.14)
        disc(draw, x, y, size, mix(topping, (0, 0, 0), 0.3))
        disc(draw, x, y, size * 0.86, vary(topping, rng, 8))
        if topping[0] < 100:
            disc(draw, x, y, size * 0.4, vary((206, 90, 50), rng))
    for x, y in scattered(rng.randint(3, 9), radius * 0.7, rng):
        leaf = [(-0.11, 0), (0, 0.05), (0.11, 0), (0, -0.05)]
        points = turned(x, y, [(px * radius, py * radius) for px, py in leaf], rng.uniform(0, 6.3))
        draw.polygon(points, fill=vary((62, 122, 48), rng))
    slices, start = rng.choice((6, 8)), rng.uniform(0, math.tau)
    if rng.random() < 0.6:
        for index in range(slices // 2):
            x, y = turned(0, 0, [(radius * 1.0, 0.0)], start + math.tau * index / slices)[0]
            draw.line((_C - x, _C - y, _C + x, _C + y), fill=mix(crust, (80, 40, 16), 0.5), width=3)
    if rng.random() < 0.4:
        angle = math.degrees(start)
        box = (_C - radius * 1.1, _C - radius * 1.1, _C + radius * 1.1, _C + radius * 1.1)
        draw.pieslice(box, angle, angle + 360 / slices, fill=vary((214, 206, 192), rng))


def _donut(draw: ImageDraw.ImageDraw, radius: float, rng: random.Random) -> None:
    """A ring of dough with icing and sprinkles, or stripes, or a bite."""
    size = radius * rng.uniform(0.8, 1.0)
    hole = size * rng.uniform(0.24, 0.34)
    dough = vary((204, 146, 82), rng)
    disc(draw, _C, _C, size, mix(dough, (90, 50, 20), 0.4))
    disc(draw, _C, _C, size * 0.96, dough)
    icings = [(236, 142, 170), (92, 54, 34), (246, 238, 224), (238, 190, 90), (150, 110, 176)]
    icing = vary(rng.choice(icings), rng)
    draw.polygon(blob(_C, _C, size * 0.85, 0.06, rng), fill=mix(icing, (0, 0, 0), 0.2))
    draw.polygon(blob(_C, _C, size * 0.82, 0.06, rng), fill=icing)
    shine = (_C - size * 0.66, _C - size * 0.66, _C + size * 0.66, _C + size * 0.66)
    begin = rng.uniform(0, 360)
    bright = mix(icing, (255, 255, 255), 0.45)
    draw.arc(shine, begin, begin + rng.uniform(40, 90), fill=bright, width=round(size * 0.09))
    if rng.random() < 0.6:
        for x, y in scattered(rng.randint(30, 60), size * 0.76, rng):
            end = turned(x, y, [(size * 0.08, 0.0)], rng.uniform(0, math.tau))[0]
            draw.line((x, y, *end), fill=rng.choice(_SPRINKLES), width=max(3, round(size * 0.035)))
    else:
        stripe = rng.choice(((252, 250, 244), (84, 46, 28)))
        for index in range(-3, 4):
            offset = index * size * 0.22
            half = math.sqrt(max(0.0, (size * 0.78) ** 2 - offset**2))
            draw.line((_C + offset, _C - half, _C + offset * 0.7, _C + half), fill=stripe, width=4)
    disc(draw, _C, _C, hole * 1.25, mix(dough, (90, 50, 20), 0.25))
    disc(draw, _C, _C, hole, vary((116, 92, 76), rng, 30))


def _sushi(draw: ImageDraw.ImageDraw, radius: float, rng: random.Random) -> None:
    """A few rolls: seaweed around rice around a filling; ginger and wasabi beside."""
    count = rng.choice((1, 3, 4, 5))
    size = radius * {1: 0.78, 3: 0.46, 4: 0.41, 5: 0.37}[count]
    fillings = [(238, 116, 82), (232, 196, 78), (122, 170, 82), (186, 42, 50)]
    start = rng.uniform(0, math.tau)
    for index in range(count):
        reach = 0.0 if count == 1 else radius * 0.58
        x, y = turned(_C, _C, [(reach, 0.0)], start + math.tau * index / count)[0]
        _draw_roll(draw, (x, y), size * rng.uniform(0.92, 1.05), rng.sample(fillings, 3), rng)
    if count > 1 or rng.random() < 0.5:
        x, y = scattered(1, radius * 0.3, rng)[0] if count > 1 else (_C + radius * 0.9, _C)
        draw.polygon(blob(x, y, radius * 0.15, 0.2, rng), fill=vary((146, 182, 84), rng))


def _draw_roll(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    size: float,
    fillings: list[Colour],
    rng: random.Random,
) -> None:
    x, y = place
    outside = rng.choice(((28, 38, 32), (28, 38, 32), (236, 120, 80)))
    draw.polygon(blob(x, y, size, 0.03, rng), fill=vary(outside, rng, 8))
    rice = vary((240, 238, 228), rng, 8)
    draw.polygon(blob(x, y, size * 0.87, 0.04, rng), fill=rice)
    for _ in range(46):
        angle, reach = rng.uniform(0, math.tau), size * rng.uniform(0.4, 0.82)
        px, py = x + reach * math.cos(angle), y + reach * math.sin(angle)
        end = turned(px, py, [(size * 0.11, 0.0)], rng.uniform(0, math.tau))[0]
        shade = mix(rice, (190, 184, 168), rng.uniform(0.2, 1.0))
        draw.line((px, py, *end), fill=shade, width=2)
    turn = rng.uniform(0, math.tau)
    for index, filling in enumerate(fillings):
        px, py = turned(x, y, [(size * 0.2, 0.0)], turn + math.tau * index / len(fillings))[0]
        half = size * rng.uniform(0.17, 0.24)
        corners = [(-half, -half), (half, -half), (half, half), (-half, half)]
        draw.polygon(turned(px, py, corners, rng.uniform(0, 1.5)), fill=vary(filling, rng))


def _fried_egg(draw: ImageDraw.ImageDraw, radius: float, rng: random.Random) -> None:
    """One to three eggs with browned edges, pepper and chives; bacon at times."""
    count = rng.choice((1, 1, 2, 3))
    size = radius * {1: 0.86, 2: 0.58, 3: 0.5}[count]
    start = rng.uniform(0, math.tau)
    if rng.random() < 0.4:
        _draw_bacon(draw, radius, rng)
    yolk = vary(rng.choice(((246, 184, 44), (238, 146, 34), (250, 206, 80))), rng)
    reach = 0.0 if count == 1 else radius * 0.42
    turns = [start + math.tau * number / count for number in range(count)]
    places = [turned(_C, _C, [(reach, 0.0)], turn)[0] for turn in turns]
    whites = [blob(x, y, size, 0.16, rng) for x, y in places]
    for (x, y), white in zip(places, whites, strict=True):
        brown = [(x + (px - x) * 1.05, y + (py - y) * 1.05) for px, py in white]
        draw.polygon(brown, fill=vary((196, 142, 82), rng))
    for white in whites:
        draw.polygon(white, fill=vary((246, 244, 236), rng, 7))
    for x, y in places:
        size_of_yolk = size * rng.uniform(0.34, 0.44)
        x, y = x + rng.uniform(-0.12, 0.12) * size, y + rng.uniform(-0.12, 0.12) * size
        disc(draw, x, y, size_of_yolk * 1.06, mix(yolk, (200, 110, 20), 0.4))
        disc(draw, x, y, size_of_yolk, yolk)
        glint = size_of_yolk * 0.3
        disc(draw, x - glint, y - glint, glint * 0.7, mix(yolk, (255, 255, 255), 0.7))
    pepper = rng.choice(((50, 44, 40), (74, 124, 56)))
    for x, y in scattered(rng.randint(10, 40), radius * 0.8, rng):
        disc(draw, x, y, rng.uniform(1.2, 3.2), pepper)


def _draw_bacon(draw: ImageDraw.ImageDraw, radius: float, rng: random.Random) -> None:
    for side in rng.sample((-1, 1), rng.randint(1, 2)):
        for stripe in range(5):
            y = _C + side * radius * (0.62 + 0.075 * stripe)
            tone: Colour = (168, 62, 46) if stripe % 2 == 0 else (232, 180, 150)
            xs = range(round(_C - radius * 0.8), round(_C + radius * 0.8), 8)
            wave = [(x, y + 6 * math.sin(x / 15)) for x in xs]
            draw.line(wave, fill=vary(tone, rng), width=round(radius * 0.08))


def _burger(draw: ImageDraw.ImageDraw, radius: float, rng: random.Random) -> None:
    """A bun from the side with layers, or from above with seeds and what sticks out."""
    bun = vary((210, 140, 66), rng)
    if rng.random() < 0.35:
        draw.polygon(blob(_C, _C, radius * 0.95, 0.1, rng), fill=vary((104, 160, 66), rng))
        draw.regular_polygon((_C, _C, radius * 1.0), 4, rng.uniform(0, 90), fill=(244, 188, 62))
        disc(draw, _C, _C, radius * 0.86, vary((98, 58, 38), rng))
        disc(draw, _C, _C, radius * 0.8, bun)
        off_centre = _C - radius * 0.12
        disc(draw, off_centre, off_centre, radius * 0.55, mix(bun, (255, 226, 170), 0.3))
        seeds = scattered(rng.randint(16, 34), radius * 0.7, rng)
    else:
        _draw_layers(draw, radius, bun, rng)
        seeds = [(x, y) for x, y in scattered(60, radius * 0.8, rng) if y < _C - radius * 0.42]
    for x, y in seeds:
        seed = turned(x, y, [(-5, 0), (0, -2.4), (5, 0), (0, 2.4)], rng.uniform(0, math.tau))
        draw.polygon(seed, fill=vary((250, 232, 186), rng, 6))


def _draw_layers(draw: ImageDraw.ImageDraw, radius: float, bun: Colour, rng: random.Random) -> None:
    """Bun, meat, cheese, tomato, lettuce and the domed top, from the bottom up."""
    left, right = _C - radius * 0.9, _C + radius * 0.9

    def layer(top: float, bottom: float, colour: Colour, inset: float = 0.0) -> None:
        box = (
            left + inset * radius, _C + top * radius, right - inset * radius, _C + bottom * radius,
        )  # fmt: skip
        draw.rounded_rectangle(box, radius=radius * 0.09, fill=colour)

    layer(0.46, 0.82, bun, 0.04)
    layer(0.46, 0.54, mix(bun, (255, 240, 200), 0.5), 0.05)
    extras = rng.sample(("tomato", "cheese", "meat", "onion"), rng.randint(2, 3))
    y = 0.44
    for extra in ("meat", *extras):
        thick = {"meat": 0.24, "tomato": 0.1, "cheese": 0.07, "onion": 0.06}[extra]
        tones: dict[str, Colour] = {
            "meat": (96, 54, 36), "tomato": (206, 58, 44), "cheese": (246, 190, 60),
            "onion": (226, 206, 224),
        }  # fmt: skip
        layer(y - thick, y + 0.02, vary(tones[extra], rng), 0.0 if extra == "meat" else 0.03)
        if extra == "cheese":
            for corner in (-0.5, 0.1, 0.55):
                x, top = _C + corner * radius, _C + y * radius
                drip = [(x - radius * 0.2, top), (x + radius * 0.2, top), (x, top + radius * 0.15)]
                draw.polygon(drip, fill=tones["cheese"])
        y -= thick
    green = vary((112, 170, 66), rng)
    edge = [
        (x, _C + (y - 0.02 + 0.05 * math.sin(x / radius * 14)) * radius)
        for x in range(round(left - 6), round(right + 6), 6)
    ]
    draw.line(edge, fill=green, width=round(radius * 0.14))
    top = min(y, -0.1)
    dome = (left, _C + (top - 0.62) * radius, right, _C + (top + 0.5) * radius)
    draw.chord(dome, 180, 360, fill=mix(bun, (100, 50, 10), 0.3))
    dome = (left + 4, _C + (top - 0.59) * radius, right - 4, _C + (top + 0.47) * radius)
    draw.chord(dome, 180, 360, fill=bun)
    shine_top = dome[1] + radius * 0.1
    shine = (left + radius * 0.35, shine_top, _C + radius * 0.1, shine_top + radius * 0.2)
    draw.ellipse(shine, fill=mix(bun, (255, 236, 190), 0.35))


DISHES: dict[str, Dish] = {
    "burger": _burger,
    "donut": _donut,
    "fried_egg": _fried_egg,
    "pizza": _pizza,
    "sushi": _sushi,
}
"""Class name to how it is drawn, by code point."""
