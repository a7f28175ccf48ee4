"""The demo: a real Spark job on real text, broken on purpose, and a verifier that derives every answer itself.

:mod:`command` has the options, :mod:`job` runs them in order, :mod:`pipeline` is what a user would write. Each input is
a file in :mod:`inputs`.
"""


class DemoError(Exception):
    """The demo cannot run. The text names the cause and what to do."""


class Abort(BaseException):
    """Ends the run from within a batch. Not an ``Exception``, after which the source would only replay the batch."""
