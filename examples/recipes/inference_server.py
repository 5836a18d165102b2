"""A ragged batch of requests, and every batch_input of Triton Inference Server that goes with one."""

import numpy as np
import windrow as wr
from windrow.structure import BATCH_INPUT_KINDS, batch_input

requests = [np.random.rand(1, n).astype(np.float32) for n in (3, 1, 2)]

if __name__ == "__main__":
    joined = wr.concat([request.reshape(-1) for request in requests])
    print(joined.shape)
    for kind in BATCH_INPUT_KINDS:
        print(kind, batch_input(kind, requests).tolist())
