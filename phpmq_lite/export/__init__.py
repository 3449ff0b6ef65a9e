"""The export process: history and claims to Arrow, outside of the broker's interpreter."""
