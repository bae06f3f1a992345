"""Puts both allocators into one process: PyTorch's own and parkade. PyTorch uses one of them at a time."""

import ctypes
import pathlib

import allocators


def compiled(folder):
    """Returns the functions of raw.cpp. The first of several processes compiles them into the folder."""
    from torch.utils import cpp_extension

    folder.mkdir(parents=True, exist_ok=True)
    source = pathlib.Path(__file__).with_name("raw.cpp")
    cpp_extension.load(
        "parkade_raw",
        [str(source)],
        extra_cflags=["-O2"],
        with_cuda=True,
        is_python_module=False,
        build_directory=str(folder),
    )
    library = ctypes.CDLL(str(folder / "parkade_raw.so"))
    library.raw_pairs.restype, library.raw_pairs.argtypes = (
        ctypes.c_double,
        [ctypes.c_int, ctypes.c_int, ctypes.c_int64],
    )
    library.allocator_in_use.restype, library.use_allocator.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    library.begin_allocator.restype, library.begin_allocator.argtypes = ctypes.c_bool, [ctypes.c_void_p, ctypes.c_int]
    return library


class Both:
    """The allocators of this process. Create it before CUDA is used. PyTorch then uses parkade."""

    def __init__(self, library, policy):
        import torch

        self.library, self.is_limited, self.addresses = library, False, {"native": library.allocator_in_use()}
        allocators.choose("parkade", policy)
        self.addresses["parkade"] = library.allocator_in_use()
        torch.cuda.init()
        if not library.begin_allocator(self.addresses["native"], torch.cuda.device_count()):
            raise RuntimeError("PyTorch's allocator was not initialised")

    def use(self, name):
        """Makes PyTorch allocate new tensors with this allocator. Existing tensors are freed by the allocator that allocated them."""
        import torch

        torch.cuda.synchronize()
        if self.is_limited:
            # Each has cuBLAS's workspace within its own limit.
            torch._C._cuda_clearCublasWorkspaces()
        self.library.use_allocator(self.addresses[name])

    def limit(self, limit_bytes):
        """Limits the memory that each allocator may reserve. Do not use it for programs that capture graphs on both: graphs keep the workspaces of cuBLAS."""
        import torch

        self.is_limited = True
        for name in self.addresses:
            self.use(name)
            torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.get_device_properties(0).total_memory)
