"""What an adapter saw run, read back from a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.records import Record

if TYPE_CHECKING:
    from harness.protocol import Evidence


class UnreadableEvidence(Exception):
    """A record's evidence is not what an adapter writes; the text names the first fault."""


def read_evidence(record: Record) -> Evidence | None:
    """The evidence of a record; None where it has none.

    Raises:
        UnreadableEvidence: with the place and the fault.
    """
    if record.precision.evidence is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from harness.protocol import Evidence

    try:
        return TypeAdapter(Evidence).validate_python(record.precision.evidence)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableEvidence(
            f"precision.evidence: {where}: {first['msg']}" if where else str(first["msg"])
        ) from error
