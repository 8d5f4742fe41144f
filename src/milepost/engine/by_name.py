"""Starts of flows by their names, without the flow's code: the arguments, and the input if the engine has the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.codec.plain import JsonCodec
from milepost.errors import DeserializeStateError, OptionError, StateTypeError, shown
from milepost.executor.continuation import refuse_turn_options
from milepost.model.failure import place
from milepost.store import check_id
from milepost.verbs import Bound, Verbs, flow_of, split_options


def read_arguments(flow: str, args: tuple[Any, ...], given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Split the arguments of a start by name into the input and options.

    The input is the only positional argument, or the object of all keywords that name no option, and of `inputs=`.
    Raises `OptionError` for both or more than that, and for an `if_exists` that needs the flow's code.
    """
    check_id(flow, "name of a flow")
    rest = dict(given)
    inputs = rest.pop("inputs", None) or {}
    named, options = split_options(rest)
    refuse_turn_options(options)
    if options.get("if_exists", "error") not in {"error", "return"}:
        raise OptionError(
            f"if_exists={shown(options['if_exists'])} needs the flow itself: a start by name takes 'error' or 'return'",
            option="if_exists",
        )
    twice = sorted(named.keys() & inputs.keys())
    if len(args) > 1 or (args and (named or inputs)) or twice:
        raise OptionError(
            f"flow {flow!r} is started by its name: give its input once, as one argument (a graph's state, or a workflow's "
            f"inputs by name) or as keywords",
            option="inputs",
        )
    return (args[0] if args else {**named, **inputs}), options


def bound(flow: Verbs[Any], given: Any) -> Bound[Any]:
    """Return a flow that the engine has with an input as plain JSON.

    Raises `SerializeStateError` for an input that is no plain JSON, and `StateTypeError` for one that does not fit.
    """
    try:
        return Bound(flow, flow_of(flow).input_of(JsonCodec().encode(given, root="input")))
    except DeserializeStateError as exc:
        text = str(exc.args[0]).replace("the record has", "it is")
        error = StateTypeError(text, path=exc.path, expected=exc.expected, found=exc.found)
        place(error, f"the input does not fit flow {flow.name!r}", "start it with an input that does")
        raise error from exc
