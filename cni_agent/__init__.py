"""The node side of Initless: which pods are captured, by which rules, and how those get into the kernel."""

__version__ = "0.1.0"
