"""Which rule a connection hits, and why that rule is there."""
