"""Ray: an actor with a sandbox of its own, and a backend for Ray's sandbox library.

    from nsbox.integrations.ray import SandboxActor

    actor = SandboxActor.options(num_cpus=1).remote(policy, imports=["math"])
    print(ray.get(actor.run.remote("math.factorial(5)", timeout=10)).value)

Ray starts an actor's method once, unless you set max_task_retries. So nothing runs twice unasked. If an actor is lost,
ray.get() raises RayActorError for each of its calls that had no result.
"""

from nsbox.integrations import _extras

try:
    import ray as _ray  # noqa: F401  (the modules below need it)
    import ray.experimental.sandbox as _sandbox  # noqa: F401
except ImportError as error:
    raise _extras.without("ray", error) from error

from nsbox.integrations.ray.actor import SandboxActor
from nsbox.integrations.ray.backend import SandboxBackend

__all__ = ["SandboxActor", "SandboxBackend"]
