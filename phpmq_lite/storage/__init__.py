"""Everything that touches the disk: one writer, read-only readers, numbered migrations."""
