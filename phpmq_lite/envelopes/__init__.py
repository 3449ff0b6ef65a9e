"""BabelQueue envelopes: what the broker asks of them, and producers and workers around them."""
