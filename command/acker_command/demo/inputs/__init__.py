"""Inputs: how the lines reach the job. One file a source; ``demo_input`` says what each has to give."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acker_command.demo.inputs.demo_input import DemoInput

SOURCES = ("files", "kafka", "kinesis", "frame")


def input_of(source: str) -> type[DemoInput]:
    """The input of one of ``SOURCES``; imported late, as it needs the packages of the extras."""
    from acker_command.demo.inputs.files import FilesLines
    from acker_command.demo.inputs.frame import FrameLines
    from acker_command.demo.inputs.kafka import KafkaLines
    from acker_command.demo.inputs.kinesis import KinesisLines

    return dict(zip(SOURCES, (FilesLines, KafkaLines, KinesisLines, FrameLines), strict=True))[source]
