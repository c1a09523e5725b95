"""The commands of `cni-agent`, one module each. A module is imported only when its command runs."""
