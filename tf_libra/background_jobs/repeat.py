"""Runner that calls a function until it returns False or raises.

python -m tf_libra.background_jobs.repeat MODULE:FUNCTION
"""

import importlib
import sys

from tf_libra.background_jobs.step_counter import counter


def main() -> None:
    """Call the function of the command line repeatedly."""
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    step = counter()
    while function() is not False:
        step()


if __name__ == "__main__":
    main()
