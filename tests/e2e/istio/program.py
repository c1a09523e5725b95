#!/usr/bin/python3 -I
"""One image for both: istiod's Deployment gives only arguments, and so does an injected pod."""

import os
import sys

program = "pilot-discovery" if sys.argv[1:2] == ["discovery"] else "pilot-agent"
os.execvp(program, [program, *sys.argv[1:]])
