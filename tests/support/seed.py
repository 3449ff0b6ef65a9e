"""The seed of tests that choose at random; ``PHPMQ_SEED`` repeats a run."""

import os
import random
from typing import Final

SEED: Final = int(os.environ.get("PHPMQ_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)
