"""The commands of `injector`, one module each. A module is imported only when its command runs."""
