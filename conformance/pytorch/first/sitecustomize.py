"""With this folder on PYTHONPATH, every Python process that imports torch allocates on parkade, including the processes that tests start."""

import importlib.abc
import importlib.machinery
import sys


class AfterTorch(importlib.abc.MetaPathFinder):
    """Enables parkade after torch has been imported and before anything can use CUDA."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                import parkade

                parkade.enable(policy="pytorch")

            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, AfterTorch())
