"""The agent: a program that is sent to a worker over SSH and runs there from memory.

Its modules need Python 3.8 and the standard library only, and import nothing else of tpuctl but the
modules named in `remote.payload`. Some of them are used on this side of the connection too.
"""
