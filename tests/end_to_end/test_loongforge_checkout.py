"""What the adapter counts on in LoongForge's own source, read where a checkout is given."""

import ast
import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

from lf_ray.loongforge.knob_map import translated
from lf_ray.loongforge.start_check import ENTRY_POINT
from lf_ray.settings import CommDtype, GraphScope, SweepConfig

pytestmark = pytest.mark.loongforge


@pytest.fixture
def checkout() -> Path:
    path = os.environ.get("LOONGFORGE_PATH")
    if not path:
        pytest.skip("needs a LoongForge checkout at LOONGFORGE_PATH")
    return Path(path)


def _fields(source: str) -> dict[str, str]:
    """Returns the annotated fields of all classes of a source, as written."""
    return {
        item.target.id: ast.unparse(item)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }


def _points() -> list[SweepConfig]:
    points = []
    for scope, ratio in ((GraphScope.off, 1.0), (GraphScope.step, 0.0), (GraphScope.step, 1.0)):
        for dtype in CommDtype:
            config = SweepConfig()
            config.cluster.workers = 2
            config.graph.scope, config.overlap.ratio = scope, ratio
            config.overlap.comm_dtype = dtype
            points.append(config)
    return points


def test_every_flag_is_one_of_its_arguments(checkout: Path) -> None:
    assert (checkout / ENTRY_POINT).is_file()
    fields = _fields((checkout / "loongforge/embodied/train/training_args.py").read_text())
    used = {
        word.removeprefix("--").removeprefix("no-").replace("-", "_")
        for config in _points()
        for word in translated(config, 8, 40).flags
        if word.startswith("--")
    }
    used |= {"seed", "output_dir", "dataset_path", "lerobotdataset_version"}
    used |= {"pretrained_checkpoint"}
    assert used <= set(fields)
    for word in ("per_microbatch", "local", "coalesced", "bf16"):
        assert any(repr(word) in text for text in fields.values()), word


def test_its_own_parser_takes_every_command(checkout: Path) -> None:
    file = checkout / "loongforge" / "embodied" / "train" / "training_args.py"
    spec = importlib.util.spec_from_file_location("their_training_args", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["their_training_args"] = module  # its data classes look themselves up there
    try:
        spec.loader.exec_module(module)
        for config in _points():
            parsed, left = module.build_arg_parser().parse_known_args(
                [*translated(config, 8, 40).flags, "--seed", "1", "--output-dir", "x"]
            )
            assert left == []
            graphed = config.graph.scope is GraphScope.step
            assert parsed.cuda_graph_impl == ("local" if graphed else "none")
            counted_mb = 25 * (2 if config.overlap.comm_dtype is CommDtype.bf16 else 1)
            during = config.overlap.ratio == 1
            name = "ddp_bucket_cap_mb" if during else "cuda_graph_grad_sync_bucket_mb"
            assert getattr(parsed, name) == counted_mb
            assert parsed.per_device_batch_size == config.batch.per_gpu
    finally:
        del sys.modules["their_training_args"]


def test_its_metrics_have_the_names_that_are_read(checkout: Path) -> None:
    train = checkout / "loongforge" / "embodied" / "train"
    sources = [train / "utils" / "logging.py", train / "trainers" / "base_trainer.py"]
    text = "\n".join(path.read_text() for path in sources)
    for name in ("step_time", "samples_per_sec", "consumed_samples", "grad_norm", "lr"):
        assert re.search(rf"""["']{name}["']""", text), name
    assert "metrics.jsonl" in text
    assert '"nan_iterations"' in text
    assert '"skipped_iterations"' in text


def test_the_environment_is_the_one_that_is_set(checkout: Path) -> None:
    text = "\n".join(
        path.read_text() for path in (checkout / "loongforge" / "embodied").rglob("*.py")
    )
    for name in ("EAGLE_LOCAL_PATH", "LOONGFORGE_BATCH_PREFETCH_COUNT", "LOCAL_RANK"):
        assert name in text
    assert "import LeRobotDataset, MultiLeRobotDataset" in text
