"""What the kernel holds and how it is asked: namespaces, netlink, xtables, minting and stamping."""
