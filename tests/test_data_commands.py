"""``data scan``, ``data sample`` and ``data fetch`` as a user meets them."""

import csv
import html.parser
import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from datasets import fetch
from harness.cli import main


def noise(path, seed, size=(20, 12), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


@pytest.fixture
def food(tmp_path):
    folder = tmp_path / "food"
    for number in range(6):
        noise(folder / "soup" / f"{number}.png", number)
    for number in range(3):
        noise(folder / "<b>&tea" / f"{number}.png", 10 + number, size=(30, 40), mode="L")
    (folder / "soup" / "copy.png").write_bytes((folder / "soup" / "0.png").read_bytes())
    (folder / "soup" / "bad.jpg").write_bytes(b"<html>")
    (folder / "soup" / "png.jpg").write_bytes((folder / "soup" / "1.png").read_bytes())
    return folder


def run(*arguments, code=0):
    done = CliRunner().invoke(main, ["data", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def test_the_json_of_a_scan_holds_the_figures(food):
    overview = json.loads(run("scan", food, "--json").stdout)
    assert overview["images"] == 11
    assert overview["classes"] == [
        {"name": "<b>&tea", "train_images": 2, "val_images": 1},
        {"name": "soup", "train_images": 6, "val_images": 2},
    ]
    # Eight photos of soup over three of tea.
    assert overview["imbalance"] == pytest.approx(8 / 3)
    assert overview["formats"] == {"PNG": 11}
    assert overview["modes"] == {"RGB": 8, "L": 3}
    assert overview["notes"] == {"PNG named .jpg": 1}
    assert overview["size_min"] == [20, 12]
    assert overview["size_max"] == [30, 40]
    assert overview["size_median"] == [20, 12]
    assert overview["byte_identical"] == 2
    assert sorted(map(sorted, overview["duplicate_groups"])) == [
        ["soup/0.png", "soup/copy.png"],
        ["soup/1.png", "soup/png.jpg"],
    ]
    assert overview["leaked_val_images"] == 0
    assert overview["quarantined"] == [
        {"path": "soup/bad.jpg", "reason": "not an image: a web page or XML"}
    ]
    assert overview["split"] == "stratified"


def test_the_colours_of_a_scan_are_those_of_the_pixels(tmp_path):
    for class_name, grey in (("dark", 51), ("light", 204)):
        for number in range(2):
            path = tmp_path / class_name / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (5, 5), (grey, grey, 254 + number)).save(path)
    overview = json.loads(run("scan", tmp_path, "--json").stdout)
    # Halves of 0.2 and 0.8: mean 0.5, standard deviation 0.3; blue is about 1.
    assert overview["channel_mean"][:2] == pytest.approx([0.5, 0.5])
    assert overview["channel_std"][:2] == pytest.approx([0.3, 0.3])
    assert overview["channel_mean"][2] == pytest.approx(254.5 / 255)


def test_the_page_on_the_terminal_names_classes_counts_and_bad_files(food):
    page = run("scan", food).stdout
    assert "11 in 2 classes" in page
    assert "soup/bad.jpg: not an image: a web page or XML" in page
    assert "2 by bytes" in page
    assert "<b>&tea" in page


def test_names_cannot_put_codes_on_the_terminal_or_into_the_page(food, tmp_path):
    noise(food / "soup" / "\x1b[31mred\n.png", 50)
    (food / "soup" / "\x1b]0;title.jpg").write_bytes(b"x")
    done = run("scan", food, "--html", tmp_path / "page.html")
    assert "\x1b" not in done.output
    assert "\x1b" not in (tmp_path / "page.html").read_text()


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.images, self.headings, self.text = set(), [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "img":
            self.images.append(dict(attributes))

    def handle_data(self, text):
        self.text += text


def test_the_contact_sheet_shows_every_photo_and_escapes_names(food, tmp_path):
    run("scan", food, "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.images) == 11
    assert {image["alt"] for image in page.images} >= {"soup/0.png", "<b>&tea/0.png"}
    assert all(image["src"].startswith("data:image/jpeg;base64,") for image in page.images)
    assert "&lt;b&gt;&amp;tea" in text
    assert "script" not in page.tags
    # Nothing is fetched from anywhere: the page works offline and tells nobody.
    assert "http://" not in text
    assert "https://" not in text


def test_the_lists_are_written(food, tmp_path):
    run("scan", food, "--out", tmp_path / "lists")
    with open(tmp_path / "lists" / "quarantine.csv", newline="") as file:
        assert list(csv.reader(file)) == [
            ["path", "reason"],
            ["soup/bad.jpg", "not an image: a web page or XML"],
        ]
    again = json.loads(run("scan", tmp_path / "lists" / "manifest.csv", "--json").stdout)
    assert (
        again["manifest_sha256"]
        == json.loads(run("scan", food, "--json").stdout)["manifest_sha256"]
    )
    assert again["split"] == "given"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scan", "nowhere"], "no such file or folder"),
        (["scan", "{food}", "--strict"], "1 files cannot be used, the first is soup/bad.jpg"),
        (["scan", "{food}", "--fold", "9/3"], "fold 9/3: give K/N"),
        (["scan", "{food}", "--fold", "x"], "give K/N, such as 1/5"),
        (["scan", "{food}", "--val-fraction", "2"], "must lie between 0 and 1"),
        (["scan", "{food}", "--html", "{food}"], "cannot be written"),
        (["sample", "{food}"], "not empty; give a new folder"),
        (["fetch", "mnist", "x"], "food101"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_line(arguments, message, food):
    done = run(*[argument.format(food=food) for argument in arguments], code=2)
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_folds_are_counted_from_one(food):
    counts = [
        json.loads(run("scan", food, "--json", "--fold", f"{k}/3").stdout)["val_images"]
        for k in (1, 2, 3)
    ]
    assert sum(counts) == 11


def test_sample_draws_class_folders(tmp_path):
    run("sample", tmp_path / "s", "--images-per-class", 2, "--image-size", 32)
    assert len(list((tmp_path / "s").glob("*/*.jpg"))) == 10


def test_an_interrupted_fetch_is_exit_code_130(tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "download", interrupt)
    done = run("fetch", "food101", tmp_path, code=130)
    assert "run it again to go on" in done.stderr


def test_every_bad_file_of_the_odd_collection_is_named(shared_data):
    overview = json.loads(run("scan", shared_data / "odd", "--json").stdout)
    assert {bad["path"]: bad["reason"] for bad in overview["quarantined"]} == {
        "made/empty.jpg": "empty file",
        "made/html_named.jpg": "not an image: a web page or XML",
        "made/truncated_20_bytes.jpg": "truncated after 20 bytes",
        "made/truncated_half.jpg": "truncated after 24,353 bytes",
        "pillow/LICENSE": "not an image that can be decoded",
        "pillow/broken.png": "not an image that can be decoded",
        "pillow/truncated_image.png": "truncated after 81,920 bytes",
        "pillow/truncated_jpeg.jpg": "truncated after 6,698 bytes",
    }
    assert overview["images"] == 41
    assert overview["notes"]["PNG named .jpg"] == 2
    assert overview["notes"]["WEBP named .jpg"] == 1


def test_the_real_photos_keep_their_official_split(shared_data):
    overview = json.loads(run("scan", shared_data / "food5", "--json").stdout)
    assert (overview["train_images"], overview["val_images"]) == (240, 60)
    assert overview["split"] == "given"
    assert overview["quarantined"] == []
    assert len(overview["classes"]) == 5
