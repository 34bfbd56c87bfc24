"""What the reruns of the published experiment teach: every sentence follows from a measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from harness.article import Audit
from harness.records import Record
from harness.replicate import VariantResult
from harness.speedup import Speedup
from harness.verdict import Verdict
from reports import formats
from reports.comparison import ArmFigures, comparison_table
from reports.formats import count, number, percent, precision

WAITING = 0.1
"""From this share of the time on, an arm is said to wait for its data."""
_LEVEL = 0.05
"""Of the one-sided binomial test that tells an accuracy from guessing."""


@dataclass(frozen=True, kw_only=True)
class Sentinel:
    """One check of the harness, as it stood in one variant."""

    name: str
    fired: bool | None
    """None where it could not look."""
    text: str


@dataclass(frozen=True, kw_only=True)
class ArmLesson:
    """Figures of one arm; None stands for what was not measured."""

    precision: str
    status: str
    reason: str | None
    images_per_s: float | None
    """Median of the timed windows."""
    data_wait_fraction: float | None
    train_loss: float | None
    """Mean over the last quarter of the steps."""
    val_loss: float | None
    """Of the validation images whose class the head knows."""
    val_top1: float | None
    """Of all validation images; one that the head has no output for counts as wrong."""
    above_guessing: bool | None
    """Whether a binomial test tells :attr:`val_top1` from guessing."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """One variant: its figures, what they seem to say, and what is the case."""

    name: str
    title: str
    fp32: ArmLesson
    amp: ArmLesson
    verdict: Verdict
    """Of speed."""
    seen: str
    """What a reader of times and training losses alone would conclude."""
    truth: str
    hid: tuple[str, ...]
    """What about AMP could not be seen: speed, accuracy, overflow."""
    stopped: bool
    """Whether an arm ended before its time."""
    sentinels: tuple[Sentinel, ...]

    @property
    def arms(self) -> tuple[ArmLesson, ArmLesson]:
        """fp32 and AMP."""
        return self.fp32, self.amp


def lessons(results: Sequence[VariantResult]) -> list[Lesson]:
    """One lesson a variant; the first result is the corrected experiment, the yardstick.

    Raises:
        ValueError: the first result has defects.
    """
    corrected = results[0]
    if corrected.variant.defects:
        raise ValueError("the first result must be the corrected experiment")
    return [_lesson(result, corrected) for result in results]


def _lesson(result: VariantResult, corrected: VariantResult) -> Lesson:
    honest, (honest_fp32, _) = _compared(corrected)
    gain, rows = _compared(result)
    fp32, amp = (
        _arm(record, figures, result)
        for record, figures in zip((result.fp32, result.amp), rows, strict=True)
    )
    arms = (fp32, amp)
    stopped = any(arm.status not in ("ok", "unavailable") for arm in arms)
    sentinels = (
        _pictures(result.audit),
        _batch_hash(result, corrected),
        _head(result.audit),
        _drill(result),
        _waiting(arms),
        _learning(arms, result.audit.classes),
    )
    fired = {sentinel.name for sentinel in sentinels if sentinel.fired}
    return Lesson(
        name=result.variant.name,
        title=result.variant.title,
        fp32=fp32,
        amp=amp,
        verdict=gain,
        seen=_seen(arms, gain, result.audit.classes),
        truth=" ".join(
            (
                *_truth(result, arms, fired),
                *_truth_of_decoding(result, arms, fired, honest_fp32.images_per_s),
                *_truth_of_ratio(result, fired, gain.speedup, honest.speedup),
                *_truth_without_defects(result, arms, fired),
            )
        ),
        hid=tuple(_hid(fired, gain.speedup, honest.speedup)),
        stopped=stopped,
        sentinels=sentinels,
    )


def _compared(result: VariantResult) -> tuple[Verdict, tuple[ArmFigures, ArmFigures]]:
    # The tables of a comparison show one unlabelled pair a backend.
    pair = [
        record.model_copy(
            update={"arm": f"{record.backend}-{record.precision.requested}", "label": ""}
        )
        for record in (result.fp32, result.amp)
    ]
    (row,) = comparison_table(None, pair)
    return row.verdict, (row.fp32, row.amp)


def _arm(record: Record, figures: ArmFigures, result: VariantResult) -> ArmLesson:
    losses = record.steps.loss
    known = record.data.val_images if record.data else 0
    top1 = figures.val_top1
    correct = None if top1 is None else round(top1 * known)
    return ArmLesson(
        precision=precision(record.precision.requested),
        status=record.status,
        reason=record.reason,
        images_per_s=figures.images_per_s,
        data_wait_fraction=record.throughput.data_wait_fraction if record.throughput else None,
        train_loss=mean(losses[-math.ceil(len(losses) / 4) :]) if losses else None,
        val_loss=record.accuracy.val_loss if record.accuracy else None,
        val_top1=None if correct is None else correct / result.val_images,
        above_guessing=None
        if correct is None
        else _above_guessing(correct, result.val_images, result.audit.classes),
    )


def _above_guessing(correct: int, images: int, classes: int) -> bool:
    from scipy.stats import binomtest

    return bool(binomtest(correct, images, 1 / classes, alternative="greater").pvalue < _LEVEL)


def _pictures(audit: Audit) -> Sentinel:
    # Photos have duplicates; half of all is no accident.
    return Sentinel(
        name="Distinct pictures",
        fired=audit.distinct_images < audit.distinct_ids / 2,
        text=f"{count(audit.distinct_images)} distinct among {count(audit.images)} drawn under "
        f"{count(audit.distinct_ids)} ids",
    )


def _batch_hash(result: VariantResult, corrected: VariantResult) -> Sentinel:
    own, other = result.fp32.data, corrected.fp32.data
    name = "Hash of the batches"
    if own is None or other is None or own.batch_sha256 is None or other.batch_sha256 is None:
        return Sentinel(name=name, fired=None, text="no hash: the run ended before its end")
    if own.batch_sha256 == other.batch_sha256:
        return Sentinel(name=name, fired=False, text=f"{own.batch_sha256[:12]}, as corrected")
    order = "the same" if own.order_sha256 == other.order_sha256 else "another"
    return Sentinel(
        name=name,
        fired=True,
        text=f"{own.batch_sha256[:12]}, corrected {other.batch_sha256[:12]}; the order of ids is "
        f"{order}",
    )


def _head(audit: Audit) -> Sentinel:
    return Sentinel(
        name="Classes",
        fired=audit.outputs != audit.classes,
        text=f"{audit.outputs} outputs for {audit.classes} classes; different labels drawn: "
        f"{audit.distinct_labels}",
    )


def _drill(result: VariantResult) -> Sentinel:
    name = "Loss-scaler drill"
    if result.drill is None:
        return Sentinel(name=name, fired=None, text=f"not drilled: {result.no_drill_reason}")
    checks = [finding for finding in result.drill if finding.expected is not None]
    failed = [finding for finding in checks if not finding.passed]
    text = f"{len(checks) - len(failed)} of {len(checks)} checks pass"
    if failed:
        first = failed[0]
        text += f"; {first.check}: {first.observed} instead of {first.expected}"
    return Sentinel(name=name, fired=bool(failed), text=text)


def _waiting(arms: Iterable[ArmLesson]) -> Sentinel:
    shares = [arm.data_wait_fraction for arm in arms]
    known = [share for share in shares if share is not None]
    return Sentinel(
        name="Waiting for data",
        fired=max(known) >= WAITING if known else None,
        text=_pair(percent(share) for share in shares),
    )


def _learning(arms: Sequence[ArmLesson], classes: int) -> Sentinel:
    judged = [arm for arm in arms if arm.above_guessing is not None and arm.train_loss is not None]
    fired = [
        not arm.above_guessing and arm.train_loss < math.log(classes) / 2
        for arm in judged
        if arm.train_loss is not None
    ]
    return Sentinel(
        name="Training against validation",
        fired=any(fired) if fired else None,
        text=f"training loss {_pair(number(arm.train_loss) for arm in arms)}; top-1 "
        f"{_pair(percent(arm.val_top1) for arm in arms)}, guessing {percent(1 / classes)}",
    )


def _pair(values: Iterable[str]) -> str:
    fp32, amp = values
    return f"{fp32} fp32, {amp} AMP"


def _seen(arms: Sequence[ArmLesson], gain: Verdict, classes: int) -> str:
    for arm in arms:
        if arm.status == "unavailable":
            return f"Nothing about AMP: {arm.precision} is unavailable ({arm.reason})."
        if arm.status != "ok":
            return f"Nothing: {arm.precision} {arm.status}: {arm.reason}"
    losses = [arm.train_loss for arm in arms if arm.train_loss is not None]
    text = f"{_seen_of_speed(gain)}; the training loss ends at {_pair(map(number, losses))}"
    if losses and max(losses) < math.log(classes) / 20:
        text += ": both seem to have learned all there is"
    return f"{text}."


def _seen_of_speed(verdict: Verdict) -> str:
    gain = verdict.speedup
    if gain is None:
        return f"No ratio: {verdict.reason.rstrip('.')}"
    level = abs(gain.ratio - 1) <= verdict.margin
    said = {
        "pays": "AMP is faster",
        "slower": "AMP is slower",
        "no difference": "AMP makes no difference to speed",
        "too noisy": "AMP makes no difference to speed"
        if level
        else "The windows are too noisy to tell AMP's effect on speed",
    }
    return f"{said[verdict.outcome]} ({formats.gain(gain)})"


def _truth(result: VariantResult, arms: Sequence[ArmLesson], fired: set[str]) -> Iterable[str]:
    audit = result.audit
    stopped = next((a for a in arms if a.status not in ("ok", "unavailable")), None)
    if "Classes" in fired:
        unseen = f"The head has {audit.outputs} outputs for {audit.classes} classes"
        if stopped is not None:
            yield f"{unseen}: training stopped at a label that has none."
        elif audit.distinct_labels <= audit.outputs:
            yield (
                f"{unseen}, and nothing stopped it, because the loader drew labels of only "
                f"{audit.distinct_labels} class{'es' if audit.distinct_labels > 1 else ''}."
            )
    if "Distinct pictures" in fired and stopped is None:
        yield (
            f"Both arms were shown {count(audit.distinct_images)} picture"
            f"{'s' if audit.distinct_images > 1 else ''} {count(audit.images)} times over."
        )
    if "Training against validation" in fired:
        yield (
            f"They know it by heart and nothing else: validation top-1 is "
            f"{_pair(percent(arm.val_top1) for arm in arms)}, no better than guessing, so neither "
            "loss says anything about AMP."
        )
    if "Loss-scaler drill" in fired:
        optimizer = result.amp.training.optimizer if result.amp.training else None
        hidden = (
            " Adam divides the scale out of its update again, so the loss does not show it."
            if optimizer == "adam"
            else ""
        )
        yield f"The scaler skips no infinite gradient and never moves its scale.{hidden}"


def _truth_of_decoding(
    result: VariantResult, arms: Sequence[ArmLesson], fired: set[str], honest_rate: float | None
) -> Iterable[str]:
    live = "live_decoding" in result.variant.defects
    if any(arm.data_wait_fraction is None for arm in arms):
        return
    waits = _pair(percent(arm.data_wait_fraction) for arm in arms)
    if "Waiting for data" in fired:
        yield f"Waiting for data took {waits} of the time, which no precision shortens."
    elif live:
        yield f"Decoding kept up with the steps here: waiting for data took {waits} of the time."
    rate = arms[0].images_per_s
    if live and _shares_cpu(result) and rate is not None and honest_rate is not None:
        yield (
            f"It ran on the CPU that trains: fp32 trained {number(rate)} images/s, corrected "
            f"{number(honest_rate)}."
        )


def _shares_cpu(result: VariantResult) -> bool:
    return result.fp32.device is not None and result.fp32.device.type == "cpu"


def _truth_of_ratio(
    result: VariantResult, fired: set[str], gain: Speedup | None, honest: Speedup | None
) -> Iterable[str]:
    defects = result.variant.defects
    if not defects or gain is None or honest is None:
        return
    moved = _moved(gain, honest)
    if moved is None:
        yield f"The ratio's interval meets that of the corrected run, {formats.gain(honest)}."
        return
    corrected = f"Corrected, the ratio is {formats.gain(honest)}"
    if moved and "Waiting for data" in fired:
        yield f"{corrected}: the wait pulled it towards 1."
    elif moved and "live_decoding" in defects and _shares_cpu(result):
        yield (
            f"{corrected}; whether decoding's share of the CPU made the difference, or two pairs "
            "of processes do, the waiting time does not tell."
        )
    else:
        yield (
            f"{corrected}; this defect does not explain the difference: processes can differ by "
            "more than the interval assumes, and the machine can drift from arm to arm."
        )


def _truth_without_defects(
    result: VariantResult, arms: Sequence[ArmLesson], fired: set[str]
) -> Iterable[str]:
    known = [arm.above_guessing for arm in arms if arm.above_guessing is not None]
    if result.variant.defects or fired or not known:
        return
    learned = "learned" if all(known) else "were not shown to learn in so few steps"
    tops = _pair(percent(arm.val_top1) for arm in arms)
    yield f"The arms {learned}: validation top-1 {tops}. No sentinel fired."


def _moved(gain: Speedup, honest: Speedup) -> bool | None:
    """Whether the ratio lies nearer to 1 than the honest one; None where the intervals meet."""
    if gain.shown.low <= honest.shown.high and honest.shown.low <= gain.shown.high:
        return None
    return abs(math.log(gain.ratio)) < abs(math.log(honest.ratio))


def _hid(fired: set[str], gain: Speedup | None, honest: Speedup | None) -> Iterable[str]:
    if "Waiting for data" in fired and gain and honest and _moved(gain, honest):
        yield "speed"
    if "Distinct pictures" in fired or "Training against validation" in fired:
        yield "accuracy"
    if "Loss-scaler drill" in fired:
        yield "overflow"
