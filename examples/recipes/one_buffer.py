"""A tree of batches in one allocation: one copy moves it, one message sends it."""

import pickle
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection

import numpy as np
import torch
import windrow as wr

samples = [{"image": np.full((8, 8, 3), i, np.uint8), "ids": np.arange(i + 1), "label": i} for i in range(4)]
spec = {"image": wr.Stack(dtype="float32"), "ids": wr.Pad(value=-1, mask="real")}


def receive(pipe: Connection) -> None:
    head, buffer = pipe.recv_bytes(), pipe.recv_bytes()
    tree = pickle.loads(head, buffers=[buffer])
    pipe.send((tree["ids"].numpy().tolist(), tree["image"].shape))


if __name__ == "__main__":
    tree = wr.collate(samples, spec, arena=True)
    arena = tree["ids"].arena
    print(arena, tree["ids"].arena_layout)

    # The pickle has the containers and where each tensor is; the bytes go beside it, once.
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(tree, protocol=5, buffer_callback=buffers.append)
    print(len(head), "bytes and", len(buffers), "buffer")

    # One copy moves the bytes to a device; the same pickle makes the tree of it.
    device = "cuda" if torch.cuda.is_available() else "cpu"
    moved = arena.torch().to(device, copy=True)
    print(pickle.loads(head, buffers=[moved])["ids"].torch())

    # Another process gets the pickle and the bytes.
    ours, theirs = Pipe()
    worker = Process(target=receive, args=(theirs,))
    worker.start()
    ours.send_bytes(head)
    ours.send_bytes(buffers[0])
    print(ours.recv())
    worker.join()
