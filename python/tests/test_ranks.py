"""Plans that data-parallel ranks share: two processes of torch.distributed, by gloo, and what docs/scale.md says of any number."""

import json
import random
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import isolated
from windrow import plan

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
BUDGET, LONGEST = 2048, 400
LENGTHS = [random.Random(i).randint(4, LONGEST) for i in range(3000)]

# One rank, which knows the lengths of every second sample. Each step waits for the other rank: with unequal numbers of steps, one would wait
# until gloo's time is up.
RANK = """
import json
from datetime import timedelta
import torch, torch.distributed as dist
from test_ranks import BUDGET, LENGTHS, RECIPES
from windrow import plan
import windrow.torch

sys.path.append(str(RECIPES))
from ranks import shares_of

rank, num_ranks, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks, timeout=timedelta(seconds=60))
lengths, parts = [0] * len(LENGTHS), [None] * num_ranks
dist.all_gather_object(parts, LENGTHS[rank::num_ranks])
for other, part in enumerate(parts):
    lengths[other::num_ranks] = part
assert lengths == LENGTHS

def step(indices, assemble):
    batch = assemble([np.full(lengths[i], i, np.int32) for i in indices])
    assert batch.lengths.numpy().tolist() == [lengths[i] for i in indices]
    values = batch.numpy().reshape(-1)
    dist.all_reduce(torch.tensor([values.size]))
    return {"samples": np.unique(values[values >= 0]).tolist(), "tokens": values.size}

def padded(rows):
    return wr.pad(rows, value=-1, multiple_of=8)

rows = plan.token_budget(lengths, BUDGET, pad_to_multiple_of=8)
rows = rows[: len(rows) - (len(rows) + 1) % num_ranks]  # one too many for equal shares
found = {"rows": rows, "balance": [step(share, wr.ragged) for share in shares_of(rank, num_ranks, lengths, BUDGET, epoch=1)]}
for drop_last in (False, True):
    sampler = windrow.torch.BatchSampler(rows, seed=5, rank=rank, num_ranks=num_ranks, drop_last=drop_last)
    sampler.set_epoch(1)
    found[f"{drop_last=}"] = [step(row, padded) for row in sampler]
dist.barrier()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_two_ranks_take_each_sample_once_in_as_many_steps(tmp_path):
    dist = pytest.importorskip("torch.distributed", reason="SKIP: torch is not installed")
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("SKIP: this torch has no gloo")
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(isolated.run, RANK, rank, 2, tmp_path / "store") for rank in range(2)]
    # One that fails ends the other, too: both say why.
    assert not [rank.exception() for rank in ranks if rank.exception()]
    first, second = (json.loads(rank.result().splitlines()[-1]) for rank in ranks)

    ours, theirs = first["balance"], second["balance"]
    assert len(ours) == len(theirs) > 100
    assert sorted(i for step in ours + theirs for i in step["samples"]) == list(range(len(LENGTHS)))
    differences = []
    for mine, other in zip(ours, theirs):
        longest = max(LENGTHS[i] for i in mine["samples"] + other["samples"])
        differences.append(abs(mine["tokens"] - other["tokens"]))
        assert differences[-1] <= longest and max(mine["tokens"], other["tokens"]) <= BUDGET + longest / 2
    assert statistics.median(differences) < BUDGET / 100

    rows = [tuple(sorted(row)) for row in first["rows"]]
    assert len(set(rows)) == len(rows) and rows == [tuple(sorted(row)) for row in second["rows"]]
    for drop_last, repeated, left_out in ((False, 1, 0), (True, 0, 1)):
        ours, theirs = first[f"{drop_last=}"], second[f"{drop_last=}"]
        assert len(ours) == len(theirs) == (len(rows) + repeated - left_out) // 2
        assert max(step["tokens"] for step in ours + theirs) <= BUDGET
        taken = [tuple(step["samples"]) for step in ours + theirs]
        assert len(taken) - len(set(taken)) == repeated
        assert set(taken) <= set(rows) and len(rows) - len(set(taken)) == left_out


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("shortest", [0, 1, 1500, BUDGET])
def test_ranks_differ_by_the_longest_sample_at_most(num_ranks, shortest):
    for count in (0, 1, num_ranks, 37, 1000):
        lengths = [random.Random(i + shortest).randint(shortest, BUDGET) for i in range(count)]
        tokens = [sum(lengths[i] for i in rank) for rank in plan.balance(lengths, num_ranks)]
        longest = max(lengths, default=0)
        assert max(tokens) - min(tokens) <= longest
        assert max(tokens) <= sum(lengths) / num_ranks + longest * (1 - 1 / num_ranks)


@pytest.mark.parametrize("num_ranks", [2, 3, 8, 64])
@pytest.mark.parametrize("how", ["first_fit_decreasing", "best_fit_decreasing", "in_order"])
@pytest.mark.parametrize("shortest", [1, 1500, BUDGET])
def test_only_the_last_step_can_have_fewer_samples_than_ranks(num_ranks, how, shortest):
    lengths = [random.Random(i + shortest).randint(shortest, BUDGET) for i in range(1000)]
    *steps, _ = plan.pack(lengths, num_ranks * BUDGET, how)
    assert min(map(len, steps)) >= num_ranks
