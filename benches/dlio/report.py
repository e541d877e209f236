"""The table of the bench, in Markdown."""

import statistics

HEAD = [
    "workload, way, door", "accelerators", "a client core", "AU %", "required", "GB/s", "CPU s/GB",
    "wire bytes a byte", "memory MiB", "spread %",
]  # fmt: skip


def row(data, way, door, accelerators, runs, cores):
    """A line of the table: medians of the runs, and how far their AU lies apart."""
    workload = data.workload
    au = [run.au for run in runs]

    def median(value, digits, scale=1):
        found = [value(run) for run in runs]
        return "" if None in found else f"{statistics.median(found) / scale:.{digits}f}"

    return [
        f"{workload.name}, {workload.accelerator}, {way}, {door}", f"{accelerators:g}", f"{accelerators / cores:.3g}",
        f"{100 * statistics.median(au):.1f}", f"{100 * workload.au:.0f}",
        median(lambda run: run.gb / run.seconds, 2),
        median(lambda run: None if run.cpu_s is None else run.cpu_s / run.gb, 3),
        median(lambda run: None if run.wire_bytes is None else run.wire_bytes / run.gb / 1e9, 3),
        median(lambda run: run.memory_bytes, 0, 1 << 20),
        f"{100 * spread(au):.1f}",
    ]  # fmt: skip


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def table(rows):
    right = ["---"] + ["--:"] * (len(HEAD) - 1)
    return "\n".join("| " + " | ".join(line) + " |" for line in [HEAD, right, *rows])


def notes(settings, dlio):
    """The conditions under which a table holds, for whoever reads it."""
    kind = f"A sample: runs of {settings.seconds:g} s, not by MLCommons' rules."
    if settings.rules:
        kind = "By the rules of v2.0 and v3.0, but for the length of epochs: a run has 500 steps in all."
    cpus = listed(settings.client_cpus), listed(settings.target_cpus)
    return "\n".join(
        [
            f"DLIO with the MLPerf Storage workloads, not verified by MLCommons. {kind}",
            "",
            f"- {dlio}; data at least {settings.times_memory} times the client's memory of {settings.memory:g} GiB",
            f"  (a control group); one warm-up and {settings.runs} runs of each row, medians, each with another seed,",
            "  which the target is not told.",
            "- The client has processors {}, the target {}.".format(*cpus),
            "- Stock: DLIO's loaders, untouched. Open: samples from `dlfs.Loader`, each an array of verified bytes",
            f"  that nothing decodes; {settings.order} order.",
            "- The most accelerators that keep the required AU, within some 8 %; where AU is below it, time ran out."
            if settings.accelerators is None
            else "- The number of accelerators was given, and lowered until it kept the required AU.",
            "  A number that is not whole is that of ranks whose steps are longer: 0.7 is one rank with steps of",
            "  1/0.7 of the time.",
            "- Processor time and memory are those of the client's processes, `dlfs mount` included, from the first",
            "  epoch's begin on. More ranks than one poll while they wait for the slowest, and that time is in it.",
            "- Page caches are dropped before each run, but for the target's, which stands for another machine.",
        ]
    )


def listed(cpus):
    return ",".join(map(str, sorted(cpus)))
