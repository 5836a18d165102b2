"""Lists of ids by feature and user, key-major, for embedding tables."""

import torch
from windrow.structure import keyed_jagged

users = [{"clicked": [3, 1, 4], "liked": []}, {"clicked": [1], "liked": [5, 9]}, {"clicked": [], "liked": [2]}]

if __name__ == "__main__":
    features = keyed_jagged(users, ["clicked", "liked"])
    # torchrec: KeyedJaggedTensor(keys=features.keys, values=features.values, lengths=features.lengths)
    tables = {key: torch.nn.EmbeddingBag(10, 4, include_last_offset=True) for key in features.keys}
    for position, key in enumerate(features.keys):
        offsets = features.offsets[position * features.stride : (position + 1) * features.stride + 1]
        values = features.values[offsets[0] : offsets[-1]]
        print(key, tables[key](values, offsets - offsets[0]).shape)
