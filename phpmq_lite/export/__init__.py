"""The export process: sends history and claims as Arrow, outside of the broker's interpreter."""
