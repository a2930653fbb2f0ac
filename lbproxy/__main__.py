"""`python -m lbproxy`"""

import sys

from lbproxy.cli import main

sys.exit(main())
