"""Dask: Python code on a cluster, contained. Each worker keeps a warm sandbox.

    from nsbox.integrations import dask as contained

    client.register_plugin(contained.SandboxPlugin(policy, imports=["math"]))
    for result in contained.map(client, codes, timeout=10):
        print(result.index, result.value, result.cause, result.worker)

If a worker is lost, Dask runs its batches again elsewhere, and the records say so.
"""

from nsbox.integrations import _extras

try:
    import distributed as _distributed  # noqa: F401  (the modules below need it)
except ImportError as error:
    raise _extras.without("dask", error) from error

from nsbox.integrations.dask.map import DaskMap, map, submit
from nsbox.integrations.dask.plugin import SandboxPlugin
from nsbox.integrations.dask.result import DaskResult

__all__ = ["DaskMap", "DaskResult", "SandboxPlugin", "map", "submit"]
