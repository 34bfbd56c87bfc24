"""The report's section on networks and inputs that one study compares."""

from report_records import ok_record, study_of

from harness.records import ModelPart, Record
from reports.blocks import Table
from reports.cells import Results, study_cells
from reports.settings_compared import settings_compared_section


def pair(model: str, variant: str, fp32: float, amp: float) -> list[Record]:
    part = ModelPart(name=model, parameters=1, forward_flops_per_image=2)
    return [
        ok_record("torch", precision, rates=[rate] * 6, variant=variant, model=part)
        for precision, rate in (("fp32", fp32), ("amp", amp))
    ]


def section_of(*records: Record):
    study = study_of(*(record.arm for record in records))
    return settings_compared_section(Results(study=study, cells=study_cells(study, records)))


def test_each_network_has_its_own_speedup_and_verdict():
    section = section_of(*pair("lenet", "", 40, 60), *pair("resnet50", "resnet50", 40, 30))

    assert section is not None
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    told = [(row[0].partition(",")[0], row[3].partition(" ")[0], row[4]) for row in table.rows]
    assert told == [("torch: lenet", "×1.50", "pays"), ("torch: resnet50", "×0.750", "slower")]


def test_a_study_of_one_setting_has_no_such_section():
    assert section_of(*pair("lenet", "", 40, 60)) is None
