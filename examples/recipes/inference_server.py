"""Requests of unequal length that come while the model works are padded to its next batch; then Triton's ragged batches."""

import asyncio
from typing import Any, Callable, List, Optional, Tuple

import numpy as np
import torch
import windrow as wr
from windrow.structure import BATCH_INPUT_KINDS, batch_input


# A waiting request: its tokens, and the future of its answer.
Request = Tuple[Any, "asyncio.Future[Any]"]


class Batcher:
    """Gives the model one batch of whatever waits. A request alone goes at once."""

    def __init__(self, model: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], limit: int = 64) -> None:
        self.model, self.limit = model, limit
        self.waiting: "asyncio.Queue[Request]" = asyncio.Queue()

    async def answer(self, ids: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait((ids, future))
        return await future

    async def run(self) -> None:
        taken: List[Request] = []
        try:
            while True:
                taken = [await self.waiting.get()]
                # To wait for more of them: await asyncio.sleep(0.002)
                while len(taken) < self.limit and not self.waiting.empty():
                    taken.append(self.waiting.get_nowait())
                await self.step(taken)
        finally:  # nobody waits for the answer of a server that has stopped
            while not self.waiting.empty():
                taken.append(self.waiting.get_nowait())
            for _, future in taken:
                future.cancel()

    async def step(self, taken: List[Request]) -> None:
        rows: Any = []
        try:
            batch, taken = padded(taken)
            if batch is not None:
                rows = await asyncio.to_thread(self.model, batch.torch(), batch.mask.torch())
        except Exception as error:
            rows = [error] * len(taken)
        for (_, future), row in zip(taken, rows):
            settle(future, row)


def settle(future: "asyncio.Future[Any]", row: Any) -> None:
    if not future.done():  # else it was cancelled meanwhile
        future.set_exception(row) if isinstance(row, Exception) else future.set_result(row)


def padded(taken: List[Request]) -> Tuple[Optional[wr.Batch], List[Request]]:
    """The batch of the requests that nobody has cancelled and windrow does not refuse, and these."""
    while taken := [(ids, future) for ids, future in taken if not future.done()]:
        try:
            requests = [ids for ids, _ in taken]
            return wr.pad(requests, multiple_of=8, dtype="int64", mask="real", mask_dtype="int64"), taken
        except Exception as error:
            index = getattr(error, "index", None)
            if index is None:  # not one request's fault
                raise
            settle(taken[index][1], error)
    return None, []


def model(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (ids * mask).sum(1) / mask.sum(1)


async def serve() -> List[Any]:
    batcher = Batcher(model)
    running = asyncio.create_task(batcher.run())
    requests = [np.arange(n, dtype=np.int32) for n in (3, 1, 9)] + [[4, 6], [7, None], torch.ones(5).int()]
    answers = await asyncio.gather(*map(batcher.answer, requests), return_exceptions=True)
    running.cancel()
    return answers


if __name__ == "__main__":
    for answer in asyncio.run(serve()):
        print(answer)

    requests = [np.random.rand(1, n).astype(np.float32) for n in (3, 1, 2)]
    joined = wr.concat([request.reshape(-1) for request in requests])
    print(joined.shape)
    for kind in BATCH_INPUT_KINDS:
        print(kind, batch_input(kind, requests).tolist())
