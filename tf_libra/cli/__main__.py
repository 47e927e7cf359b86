"""`python -m tf_libra.cli`."""

import sys

from tf_libra.cli.main import main

sys.exit(main())
