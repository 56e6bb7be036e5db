"""`python -m clusterddp VERB ...`."""

import sys

from clusterddp.cli import main

if __name__ == "__main__":
    sys.exit(main())
