"""Reports and traces where the worker processes of a DataLoader read."""

import json

import pytest

import dlfs
from traces import events_of

torch = pytest.importorskip("torch", reason="torch is not installed")
import dlfs.torch  # noqa: E402
import torch.utils.data  # noqa: E402


def drawn(batch):
    """What a worker says of its own report, at each of its batches."""
    info = torch.utils.data.get_worker_info()
    data = info.dataset.report().data
    assert data["total"]["batches"] > 0 and events_of(info.dataset.trace_json())["X"]
    return len(batch)


@pytest.mark.parametrize(("persistent", "start"), [(False, "fork"), (True, "fork"), (True, "spawn")])
def test_workers_have_reports_of_their_own_and_their_parent_says_so(image, source, tmp_path, start, persistent):
    folder = tmp_path / "reports"
    with dlfs.open(image) as ds:
        data = dlfs.torch.IterableDataset(ds, 5, "global", transform=drawn, trace=True, reports=folder)
        assert data.report().data["total"]["batches"] == 0, "nobody has read"
        loader = torch.utils.data.DataLoader(
            data, batch_size=None, num_workers=2, multiprocessing_context=start, persistent_workers=persistent
        )
        for epoch in range(2):
            data.set_epoch(epoch)
            assert sum(loader) == len(source)
            for ask in (data.report, data.trace_json, lambda: data.save_trace(folder / "none.json")):
                with pytest.raises(dlfs.Unsupported, match=r"each has a (report|trace) of its own.*reports="):
                    ask()
            names = {f"rank-0-worker-{worker}.{kind}" for worker in (0, 1) for kind in ("html", "json")}
            assert {path.name for path in folder.iterdir()} == names
            pages = [(folder / name).read_text() for name in sorted(names) if name.endswith("html")]
            read = [json.loads(page.split('id="dlfs-report">')[1].split("</script>")[0]) for page in pages]
            epochs = epoch + 1 if persistent else 1
            assert sum(page["total"]["samples"] for page in read) == epochs * len(source)
        for name in names:
            if name.endswith("json"):
                events_of((folder / name).read_text())
        del loader
        # Once this process reads itself, it answers for itself.
        alone = dlfs.torch.IterableDataset(ds, 5, reports=folder)
        assert sum(len(batch) for batch in torch.utils.data.DataLoader(alone, batch_size=None)) == len(source)
        assert alone.report().data["total"]["samples"] == len(source)
        assert (folder / "rank-0.html").exists() and not (folder / "rank-0.json").exists()
