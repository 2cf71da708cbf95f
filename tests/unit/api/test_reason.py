"""`outfall.errors.reason`: one line out of what Spark makes of an error, and errors that say each thing once."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import pytest

from outfall.errors import (
    CommitError,
    CommitRefusedError,
    ConfigurationError,
    OutfallError,
    TargetNotEmptyError,
    TransientError,
    ValueRefusedError,
    error_in,
    raise_together,
    reason,
)
from outfall.formats.strings import RefusedRowError


def not_empty() -> TargetNotEmptyError:
    return TargetNotEmptyError("x is not empty", step="sink", epoch=4, why="it holds y", do="empty it")


TEXT = "[step 'sink', epoch 4] x is not empty. It holds y. What to do: empty it."


class SparkError(Exception):
    """Has its Java stack trace beside its text, as those of classic sessions."""

    _stackTrace = ""  # noqa: N815 - Spark's name


def in_spark(error: BaseException) -> str:
    """A traceback among what Spark says before and after it, twice as where causes are printed."""
    trace = "".join(traceback.format_exception(error))
    told = f"[STREAM_FAILED] Query [id = 1] terminated with exception: {trace} SQLSTATE: 39000 SQLSTATE: XXKST\n"
    return (
        f"{told}=== Streaming Query ===\nCurrent State: ACTIVE\n\nJVM stacktrace:\norg.apache.SparkException\n"
        f"\tat org.apache.spark.X(X.scala:1)\nCaused by: org.apache.spark.SparkException: {told}"
        "\tat org.apache.spark.Y(Y.scala:2)\nCaused by: py4j.Py4JException: An exception was raised: x\n"
    )


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_the_reason_is_the_text_of_our_error_without_the_stack_traces() -> None:
    error = raised(not_empty(), OSError("disk"))
    assert reason(error) == TEXT
    assert reason(RuntimeError(in_spark(error))) == TEXT
    wrapped: Any = SparkError("Job aborted.")
    wrapped._stackTrace = in_spark(error)
    assert reason(wrapped) == TEXT
    assert reason(raised(RuntimeError("in a function of mine"), error)) == TEXT
    assert reason(None) == ""
    assert reason(CommitError("the options are wrong:\n- a")) == "the options are wrong: - a."


def test_the_reason_has_the_notes() -> None:
    error = not_empty()
    error.add_note("In the sink 'b'.")
    assert reason(error) == reason(RuntimeError(in_spark(raised(error)))) == f"{TEXT} In the sink 'b'."


def test_an_error_in_a_text_is_of_the_class_that_was_raised_or_of_its_base() -> None:
    found = error_in(in_spark(raised(not_empty())))
    assert (type(found), str(found)) == (TargetNotEmptyError, TEXT)
    derived = error_in(in_spark(raised(RefusedRowError("no", 3, why="it is", do="b"))))
    assert (type(derived), str(derived)) == (ValueRefusedError, "no, in row 3 of the batch. It is. What to do: b.")
    unknown = error_in("outfall.unknown.SomeError: gone.")
    assert (type(unknown), str(unknown)) == (OutfallError, "gone.")
    assert error_in(in_spark(raised(ValueError("x")))) is None


def test_of_an_error_that_is_not_ours_the_line_that_names_it_is_the_reason() -> None:
    assert reason(RuntimeError(in_spark(raised(ValueError("no such thing"))))) == "ValueError: no such thing"
    assert reason(RuntimeError("first\n\tat x")) == "first"
    assert reason(RuntimeError()) == ""


def test_an_error_that_another_one_led_to_says_each_thing_once() -> None:
    made = CommitRefusedError.because_of(not_empty(), "the target refused", do="look there", step="sink", epoch=4)
    assert str(made) == "[step 'sink', epoch 4] the target refused. X is not empty. It holds y. What to do: empty it."
    plain = CommitError.because_of(OSError("reset"), "it failed", do="look there")
    assert str(plain) == "it failed. OSError: reset. What to do: look there."
    assert isinstance(plain.__cause__, OSError)
    assert str(pickle.loads(pickle.dumps(made))) == str(made)


def test_several_errors_say_where_and_what_to_do_once() -> None:
    errors = {"a": not_empty(), "b": TransientError("down", step="sink", epoch=4, do="wait")}
    with pytest.raises(Exception, match="2 of 3 failed") as caught:
        raise_together(errors, "2 of 3 failed", step="sink", epoch=4)
    assert str(caught.value) == (
        "[step 'sink', epoch 4] 2 of 3 failed. a: x is not empty. It holds y; b: down."
        " What to do: a: empty it; b: wait."
    )


def test_a_question_ends_as_one() -> None:
    assert str(ConfigurationError("x is unknown, did you mean y?")) == "x is unknown, did you mean y?"
