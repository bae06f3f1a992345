"""`enable` without a GPU: what it refuses, and with which messages. With a GPU: conformance/pytorch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types

import pytest

import parkade
from parkade import _bridge_build, _enable


def torch_like(version="2.11.0+cu130", cuda="13.0", used=False):
    """A module that looks like a PyTorch as far as `enable` looks before it compiles."""
    torch = types.ModuleType("torch")
    torch.__version__, torch.__file__ = version, os.path.join(os.sep, "nowhere", "torch", "__init__.py")
    torch.version = types.SimpleNamespace(cuda=cuda)
    memory = types.SimpleNamespace(_set_allocator_settings=lambda settings: None)
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: used, memory=memory)
    torch._C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
    return torch


@pytest.fixture
def torch(monkeypatch):
    def there(**how):
        monkeypatch.setitem(sys.modules, "torch", torch_like(**how))

    there()
    return there


def test_the_policies_are_those_of_the_library():
    policies = parkade.policies()
    assert next(iter(policies)) == "pytorch" and len(policies) > 15
    assert all(policies.values())


def test_a_policy_that_replaces_memory_needs_a_promise(torch):
    with pytest.raises(
        ValueError, match="pass serial=True if only one thread at a time uses the GPU, or use rescue='free'"
    ):
        parkade.enable(policy="compaction")
    assert parkade.enabled() is None


def test_a_rescue_needs_a_promise_unless_it_moves_free_memory_only(torch, monkeypatch):
    with pytest.raises(ValueError, match="a rescue replaces .*serial=True.*rescue='free'"):
        parkade.enable(rescue=True)
    monkeypatch.setenv("PARKADE_RESCUE", "1")
    with pytest.raises(ValueError, match="serial=True"):
        parkade.enable()
    monkeypatch.setenv("PARKADE_RESCUE", "yes")
    with pytest.raises(ValueError, match="PARKADE_RESCUE: 1, free or 0.*, not 'yes'"):
        parkade.enable()
    # Then only the compiler is missing.
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    for given in ({"rescue": "free"}, {"rescue": True, "serial": True}, {"policy": "pytorch-rescue", "serial": True}):
        with pytest.raises(parkade.EnableError, match="compiler"):
            parkade.enable(**given)


def test_a_rescue_is_for_expandable_segments_under_pytorch_s_rules(torch):
    with pytest.raises(ValueError, match="leave expandable_segments:False out"):
        parkade.enable(rescue="free", settings="expandable_segments:False")
    with pytest.raises(ValueError, match="only the policy 'pytorch' has a rescue"):
        parkade.enable("bfc", rescue="free")
    for wrong in ({"rescue": "free", "max_rescues": 0}, {"max_rescues": 1}):
        with pytest.raises(ValueError, match="max_rescues must be at least 1"):
            parkade.enable(**wrong)


def test_without_pytorch_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(parkade.EnableError, match="needs PyTorch"):
        parkade.enable()
    assert parkade.enabled() is None


def test_what_cannot_be_put_on_parkade_is_told_apart(torch):
    torch(cuda=None)
    with pytest.raises(parkade.EnableError, match="built without CUDA"):
        parkade.enable()
    torch(used=True)
    with pytest.raises(parkade.EnableError, match="before the first use of CUDA"):
        parkade.enable()
    torch(version="2.7.1")
    with pytest.raises(parkade.EnableError, match="2.8 or later, but this is 2.7.1"):
        parkade.enable()
    torch(version="2.99.0")
    with pytest.raises(parkade.EnableError, match="2.99"):
        parkade.enable()


def test_a_policy_with_parameters_needs_the_same_promise(torch):
    with pytest.raises(ValueError, match="serial=True"):
        parkade.enable(policy="compaction:handle=32MiB")


def test_an_unknown_policy_is_a_value_error_with_the_known_ones(torch):
    with pytest.raises(ValueError, match='no policy "pytorhc".*pytorch'):
        parkade.enable("pytorhc")
    with pytest.raises(ValueError, match="takes no settings"):
        parkade.enable("bfc", settings="expandable_segments:True")


def test_a_missing_compiler_is_told_with_the_way_around(torch, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(parkade.EnableError, match="no C.. compiler.*plug_in=True"):
        parkade.enable()


def test_a_compiler_that_fails_is_quoted(torch, monkeypatch, tmp_path):
    include = tmp_path / "cuda" / "include"
    include.mkdir(parents=True)
    (include / "cuda_runtime_api.h").write_text("")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(parkade.EnableError, match="cannot compile the bridge"):
        parkade.enable()
    assert parkade.enabled() is None and not list((tmp_path / "cache" / "parkade").glob("bridge-*"))


def test_missing_headers_name_the_folders(torch, monkeypatch):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_bridge_build.Path, "exists", lambda path: False)
    monkeypatch.setattr(_bridge_build.shutil, "which", lambda name: "c++" if name == "c++" else None)
    with pytest.raises(parkade.EnableError, match="cuda_runtime_api.h"):
        parkade.enable()


def compiled(folder, text):
    """A shared library of these C functions."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    (folder / "library.c").write_text(text)
    path = folder / "library.so"
    subprocess.run([compiler, "-shared", "-fPIC", str(folder / "library.c"), "-o", str(path)], check=True)
    return path


def test_a_library_of_its_own_is_the_one_that_pytorch_runs_on(torch, monkeypatch, tmp_path):
    """The package's library in another place: it has no policies of its own."""
    own = tmp_path / "libmine.so"
    shutil.copy(_enable._library_path(), own)
    assert parkade.policies(library=own) == parkade.policies()
    with pytest.raises(ValueError, match='no policy "mine"'):
        parkade.enable(library=own, policy="mine")
    linked = []

    def built(torch, library, *rest):
        linked.append(library)
        raise parkade.EnableError("enough")

    monkeypatch.setattr(_bridge_build, "built", built)
    for given in ({"library": str(own)}, {"library": own, "policy": "bfc"}, {}):
        with pytest.raises(parkade.EnableError, match="enough"):
            parkade.enable(**given)
    assert linked == [os.path.realpath(own)] * 2 + [_enable._library_path()]


def test_what_is_not_a_library_of_parkade_is_told_apart(torch, tmp_path):
    with pytest.raises(FileNotFoundError):
        parkade.enable(library=tmp_path / "missing.so")
    (tmp_path / "text.so").write_text("text")
    for wrong in (tmp_path / "text.so", compiled(tmp_path, "int other(void) { return 0; }")):
        with pytest.raises(parkade.EnableError, match="is not a library with parkade's C interface.*writing-a-policy"):
            parkade.enable(library=wrong)
    older = tmp_path / "older"
    older.mkdir()
    functions = "unsigned parkade_interface_version(void) { return 1; }"
    functions += "const char *parkade_error_text(void) { return 0; } const char *parkade_header(void) { return 0; }"
    with pytest.raises(parkade.EnableError, match="has version 1 of parkade's C interface.*needs version 2"):
        parkade.enable(library=compiled(older, functions))


def test_a_library_that_refuses_its_policies_says_why(torch, tmp_path):
    functions = (
        "unsigned parkade_interface_version(void) { return 2; } int parkade_declare_policies(void) { return 2; }"
    )
    functions += (
        'const char *parkade_error_text(void) { return "taken"; } const char *parkade_header(void) { return 0; }'
    )
    with pytest.raises(parkade.EnableError, match=r"library\.so: taken"):
        parkade.enable(library=compiled(tmp_path, functions))


def test_the_c_functions_are_in_the_module_s_library():
    code = "import ctypes, parkade._parkade as m; l = ctypes.CDLL(m.__file__); print(l.parkade_interface_version())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "2\n"
