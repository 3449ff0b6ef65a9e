"""For the Pythons that Spark starts: PySpark as it is installed, and not the same in zips.

Spark puts its zips first; nothing in them is compiled, so each process would spend half a second
on that.
"""

import sys

sys.path[:] = [entry for entry in sys.path if not entry.endswith(("pyspark.zip", "-src.zip"))]
