"""Kill a study at random moments, resume it, and compare it with one that nobody disturbed.

    python benchmarks/kills.py                          100 kills
    python benchmarks/kills.py --kills 10 --jobs 2      a quick look

Studies of the backend that computes nothing, started and resumed on the command line: two pairs of
arms and a repetition. Every other kill hits the command itself, which ``compare --resume`` then
completes; the others hit a random worker, whose arm is measured anew. SIGKILL each time, at a
moment between the start of the command and the end of an undisturbed study. After each:

- no process of the study is alive 10 s after its command has ended;
- ``study.json`` and every record can be read, right after the kill and at the end;
- records that were there before the kill have the same bytes at the end;
- the arms are those of the undisturbed study, all of them succeeded, none was left out, and their
  losses are equal to the last bit, as far as both trained.

Exits with 1 where one of these was violated.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.record_files import UnreadableRecord, read_record, read_study
from harness.records import Record

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = (
    *("--backend", "fake", "--device", "cpu", "--threads", "1", "--no-diagnose"),
    *("--image-size", "32", "--batch-size", "16", "--steps", "6"),
    # Steps in a window that no pace changes, so that a repetition's losses can be compared too.
    *("--window-steps", "2", "--seeds", "2", "--repeats", "3"),
)
BEHAVIOUR = '{"step_time_s": {"fp32": 0.05, "amp": 0.03}}'
MARK = "AMP_HARNESS_KILLS"
"""Variable in the environment of all processes of a study, by which they are found again."""
GONE_S = 10.0
LONGEST_S = 600.0


@dataclass(kw_only=True)
class Study:
    """One study in a folder of its own."""

    directory: Path
    cache_dir: Path
    violations: list[str] = field(default_factory=list)

    def command(self, *options: str) -> subprocess.Popen[bytes]:
        """Start ``compare`` with ``options``."""
        self.directory.mkdir(exist_ok=True)
        with (self.directory / "command.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "harness", "compare", *options),
                    *("--cache-dir", str(self.cache_dir)),
                ],
                cwd=ROOT,
                env=os.environ | {"AMP_HARNESS_FAKE": BEHAVIOUR, MARK: self.directory.name},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start(self) -> subprocess.Popen[bytes]:
        """Start it from nothing."""
        return self.command(*OPTIONS, "--out", str(self.directory))

    def wait(self, command: subprocess.Popen[bytes]) -> int | None:
        """Its exit code; None where it hung and was killed."""
        try:
            return command.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            self.violations.append(f"no end within {LONGEST_S:.0f} s")
            command.kill()
            command.wait()
            return None

    def processes(self) -> list[psutil.Process]:
        """Every process of the study that is alive."""
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get(MARK) == self.directory.name
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def files(self) -> dict[str, bytes]:
        """The finished records as they lie on disk."""
        return {path.name: path.read_bytes() for path in self.directory.glob("records/*.json")}

    def records(self) -> dict[str, Record]:
        """Arm → record of all that can be read; what cannot is a violation."""
        records = {}
        for path in self.directory.glob("records/*.json"):
            try:
                record = read_record(path)
            except UnreadableRecord as error:
                self.violations.append(str(error))
            else:
                records[record.arm] = record
        return records

    def check_no_orphans(self) -> None:
        """Wait for every process to be gone; end those that stay."""
        deadline_s = time.monotonic() + GONE_S
        while left := self.processes():
            if time.monotonic() > deadline_s:
                self.violations.append(f"alive after {GONE_S:.0f} s: {[p.pid for p in left]}")
                for process in left:
                    process.kill()
                return
            time.sleep(0.1)


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill and what came of it."""

    whom: str
    finished_before: int
    """Records that were there."""
    violations: tuple[str, ...]


def kill_once(
    number: int, *, folder: Path, whole: dict[str, Record], whole_s: float, seed: int
) -> Kill:
    """Start a study, kill the command or a worker, resume it and check what is there."""
    rng = random.Random(f"{seed}-{number}")
    whom = ("command", "worker")[number % 2]
    for attempt in range(100):
        study = Study(directory=folder / f"kill{number}-{attempt}", cache_dir=folder / "cache")
        before = _kill_at(rng.uniform(0, whole_s), whom, study, rng)
        if before is not None:
            break
    else:
        raise RuntimeError("no study lived until its kill; is the machine this unsteady?")
    study.records()
    if (study.directory / "study.json").exists():
        resumed = study.command("--resume", str(study.directory))
    else:
        resumed = study.start()  # killed before there was anything to resume
    code = study.wait(resumed)
    study.check_no_orphans()
    records = study.records()
    if code != 0:
        study.violations.append(f"the resume ended with {code} (see command.log)")
    study.violations += [f"left out: {arm}" for arm in sorted(_left_out(study))]
    after = study.files()
    study.violations += [
        f"{name} was changed" for name, content in before.items() if after.get(name) != content
    ]
    study.violations += _differences(records, whole)
    return Kill(
        whom=whom,
        finished_before=len(before),
        violations=tuple(f"{study.directory.name} ({whom}): {text}" for text in study.violations),
    )


def _kill_at(
    moment_s: float, whom: str, study: Study, rng: random.Random
) -> dict[str, bytes] | None:
    """The records before the kill; None where the study had ended, so that nobody was killed."""
    command = study.start()
    time.sleep(moment_s)
    victim = command.pid
    if whom == "worker":
        workers: list[psutil.Process] = []
        while not workers and command.poll() is None:
            workers = [process for process in study.processes() if process.pid != command.pid]
            time.sleep(0.01)
        victim = rng.choice(workers).pid if workers else None
    before = study.files()
    if command.poll() is not None or victim is None:
        return None
    try:
        psutil.Process(victim).kill()
    except psutil.NoSuchProcess:
        study.wait(command)
        return None
    study.wait(command)
    study.check_no_orphans()
    return before


def _left_out(study: Study) -> set[str]:
    try:
        told = read_study(study.directory / "study.json")
    except UnreadableRecord as error:
        study.violations.append(str(error))
        return set()
    if not told.finished:
        study.violations.append("study.json does not say that the study is finished")
    return set(told.left_out)


def _differences(records: dict[str, Record], whole: dict[str, Record]) -> list[str]:
    """In what the records are not those of the undisturbed study, in words."""
    different = []
    if records.keys() != whole.keys():
        different.append(f"arms {sorted(records)}")
    for arm in records.keys() & whole.keys():
        if records[arm].status != "ok":
            different.append(f"{arm} is {records[arm].status}: {records[arm].reason}")
        # An arm that goes on alone needs no steps that settle it before each window.
        pairs = zip(records[arm].steps.loss, whole[arm].steps.loss, strict=False)
        if any(one != other for one, other in pairs):
            different.append(f"{arm} has other losses")
    return different


def main() -> None:
    """Print what the kills hit and every violation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2, help="studies at a time")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        undisturbed = Study(directory=folder / "whole", cache_dir=folder / "cache")
        undisturbed.wait(undisturbed.start())  # decodes the photos that all studies share
        # Timed once more as the others will be: from the cache, and as many at a time.
        timed = [
            Study(directory=folder / f"timed{n}", cache_dir=folder / "cache")
            for n in range(options.jobs)
        ]
        start_s = time.monotonic()
        for study, command in [(study, study.start()) for study in timed]:
            study.wait(command)
        whole_s = time.monotonic() - start_s
        whole = undisturbed.records()
        if not whole or any(record.status != "ok" for record in whole.values()):
            sys.exit(f"the undisturbed study failed:\n{(folder / 'whole/command.log').read_text()}")

        def kill(number: int) -> Kill:
            done = kill_once(number, folder=folder, whole=whole, whole_s=whole_s, seed=options.seed)
            for violation in done.violations:
                print(violation, flush=True)
            return done

        with ThreadPoolExecutor(options.jobs) as pool:
            kills = list(pool.map(kill, range(options.kills)))
    victims = Counter(kill.whom for kill in kills)
    moments = sorted(Counter(kill.finished_before for kill in kills).items())
    finished = ", ".join(f"{count} in {times}" for count, times in moments)
    violated = sum(bool(kill.violations) for kill in kills)
    print(
        f"{len(kills)} kills ({victims['command']} of the command, {victims['worker']} of a "
        f"worker) at random moments of a study of {len(whole)} arms and {whole_s:.1f} s: "
        f"{violated} with a violation; finished records before the kill: {finished}"
    )
    sys.exit(1 if violated else 0)


if __name__ == "__main__":
    main()
