"""What istio-validation is made of: its settings, the probes it may send, the sockets that send them.

Standard library only, and on the usual way no `typing`, `re` or `dataclasses`: the program starts in every pod, before
the application, and importing those takes as long as the rest of it.
"""
