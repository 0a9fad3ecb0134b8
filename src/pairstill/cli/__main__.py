"""`python -m pairstill.cli`, which launchers of several processes such as torchrun need."""

import sys

from pairstill.cli.main import main

sys.exit(main())
