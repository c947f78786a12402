"""Checks a machine and says what is missing for what: `python -m tasks.doctor`.

    finding.py    what a check says         facts.py     what several checks look at
    software.py, libraries.py, toolchain.py, devices.py, resources.py, ports.py     the checks
    probing.py    starts a child process    probes.py    what runs in it: imports of heavy packages, code just compiled
    compiling.py  builds a small program    text.py      makes one line of a message

The modules need only the standard library and run with older versions of Python, too, since the command has to report on a
machine where the set-up failed. Heavy packages are imported in child processes, which may crash or hang.
"""
