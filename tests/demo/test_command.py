"""The command: errors of one line that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from acker_command.demo import command, job
from acker_command.demo.command import demo
from acker_command.demo.inputs.kinesis import KinesisLines


@pytest.mark.matrix
def test_help_defines_every_figure() -> None:
    told = CliRunner().invoke(demo, ["--help"]).output
    for figure in ("records", "acked", "dead_lettered", "lost", "false_acks", "failed", "timed_out", "replayed"):
        assert f"\n  {figure} " in told


def test_an_input_that_nothing_matches_is_an_error_that_names_it() -> None:
    ran = CliRunner().invoke(demo, ["--input", "/nowhere/*.txt"])
    assert ran.exit_code == 1
    assert "Error: --input /nowhere/*.txt: no file matches" in ran.output


def test_a_folder_to_keep_things_in_has_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    ran = CliRunner().invoke(demo, ["--keep", str(tmp_path)])
    assert ran.exit_code == 1
    assert "is not empty; name a new folder" in ran.output


def test_a_missing_extra_is_one_line_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "NEEDED", ("json", "no_such_package"))
    ran = CliRunner().invoke(demo, [])
    assert ran.exit_code == 1
    assert ran.output.strip() == "Error: the demo needs no_such_package: pip install 'acker[all]'"


def test_a_package_that_a_source_alone_needs_is_one_line_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KinesisLines, "packages", ("json", "no_such_package"))
    ran = CliRunner().invoke(demo, ["--source", "kinesis"])
    assert ran.exit_code == 1
    assert ran.output.strip() == (
        "Error: the demo needs no_such_package: pip install 'acker[kinesis]' 'moto[kinesis]' flask flask-cors"
    )


def test_a_source_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    ran = CliRunner().invoke(demo, ["--source", "rabbits"])
    assert ran.exit_code == 2
    assert "'rabbits' is not one of 'files', 'kafka', 'kinesis', 'frame'" in ran.output


def test_a_batch_is_small_enough_for_every_fault_to_have_one() -> None:
    assert job.JobOptions().size_of(6_000) == 1_010
    assert job.JobOptions().size_of(10_000_000) == job.BATCH_RECORDS_MAX
    assert job.JobOptions().size_of(3) == 1
    assert job.JobOptions(batch_records=7).size_of(3) == 7
