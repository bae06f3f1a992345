"""The two allocators that programs run on. The name must be chosen before CUDA is first used."""

import os
import sys

NAMES = ("native", "parkade")


def choose(name, policy="pytorch"):
    """Makes this process allocate with `native` (PyTorch's own allocator) or with `parkade` under a policy."""
    if name == "parkade":
        import parkade

        # The programs use the GPU from one thread at a time.
        parkade.enable(policy=policy, serial=True)


def chosen():
    """Returns the allocator of this process. PyTorch calls both of them `native`."""
    enabled = "parkade" in sys.modules and sys.modules["parkade"].enabled()
    return f"parkade, policy {enabled}" if enabled else "native"


def environment(setting="", **more):
    """Returns the environment of a child process, with these allocator settings and no others."""
    result = {
        key: value for key, value in os.environ.items() if key not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    }
    if setting:
        result["PYTORCH_CUDA_ALLOC_CONF"] = setting
    result["PYTHONHASHSEED"] = "0"
    result.update({key: str(value) for key, value in more.items()})
    return result


def need_torch(parser):
    """Ends the program unless PyTorch is installed and can use a GPU. A child process checks that, so this process does not initialize CUDA."""
    import subprocess

    question = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True)
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        parser.error(f"PyTorch cannot be imported by {sys.executable}: {last}")
    if int(answer.stdout.split()[-1]) == 0:
        parser.error("PyTorch sees no GPU here")
    return int(answer.stdout.split()[-1])


def need_parkade(parser):
    """Ends the program unless this Python can import parkade."""
    import importlib.util

    if importlib.util.find_spec("parkade") is None:
        parser.error(
            "there is no Python module parkade: put its folder on PYTHONPATH, or compare PyTorch with itself with --control"
        )
