"""Training of a transformer on texts of varying length, with a replica on each GPU (DDP)."""

from torch.nn.parallel import DistributedDataParallel

from .ranks import starter

start = starter(lambda model, rank: DistributedDataParallel(model, device_ids=[rank]))
