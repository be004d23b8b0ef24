"""preflight: can this machine or cluster run a distributed PyTorch job, and if not, who is to blame?"""

# Import os and a constant only: this runs while the user's folder is still first on sys.path.
import os

from preflight._version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from preflight.cli.api import Verdict as Verdict
    from preflight.cli.api import run as run

__version__ = VERSION

# In a plain checkout or an editable install checks/ and train_smoke/ are beside this folder;
# in a wheel they are inside it. Either way they are preflight.checks and preflight.train_smoke.
if not os.path.isdir(os.path.join(__path__[0], "checks")):
    __path__.append(os.path.dirname(__path__[0]))


def __getattr__(name: str) -> object:
    """`preflight.run` and its Verdict, imported on first use."""
    if name in ("run", "Verdict"):
        from preflight.cli import hiding

        return getattr(hiding.api(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
