"""The node agent: which pods there are, where their namespaces are, and what becomes of them."""
