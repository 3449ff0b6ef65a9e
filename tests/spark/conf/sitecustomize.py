"""For the Pythons that Spark starts: PySpark as it is installed, and not the same in zips.

Spark puts its zips first; nothing in them is compiled, so each process would spend half a second
on that.  Their importers have to go too: PySpark has all importers reread their folders before
each task, which takes 0.2 s for these zips.
"""

import sys

ZIPS = ("pyspark.zip", "-src.zip")

sys.path[:] = [entry for entry in sys.path if not entry.endswith(ZIPS)]
for entry in [entry for entry in sys.path_importer_cache if entry.endswith(ZIPS)]:
    del sys.path_importer_cache[entry]
