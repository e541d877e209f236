"""Checks traces against the rules of Chrome's trace event format, as https://ui.perfetto.dev reads them."""

import json

# The format's phases that a trace has, and what each event of them must have beside a name and a process.
TRACE_EVENTS = {"M": {"tid", "args"}, "X": {"tid", "ts", "dur", "cat"}, "C": {"tid", "ts", "args"}}


def events_of(text):
    """The events of a trace by phase, after a check against the rules of the format; slices must nest."""
    events, open_slices, last = json.loads(text)["traceEvents"], {}, {}
    by_phase = {phase: [] for phase in TRACE_EVENTS}
    for event in events:
        assert TRACE_EVENTS[event["ph"]] | {"name", "pid"} <= set(event), event
        by_phase[event["ph"]].append(event)
        if event["ph"] == "C":
            track = ("C", event["name"])
            assert event["ts"] >= last.get(track, 0) and all(value >= 0 for value in event["args"].values()), event
            last[track] = event["ts"]
        if event["ph"] == "X":
            track, begin = event["tid"], event["ts"]
            assert begin >= last.get(track, 0) and event["dur"] >= 0, event
            last[track] = begin
            end, rounding = begin + event["dur"], 0.0015
            around = [other for other in open_slices.get(track, []) if other > begin + rounding]
            assert all(end <= other + rounding for other in around), event
            open_slices[track] = [*around, end]
    named = {event["tid"] for event in by_phase["M"] if event["name"] == "thread_name"}
    assert {event["tid"] for event in by_phase["X"]} <= named
    return by_phase
