"""The program that tpuctl sends to a worker over the connection, and runs there from memory.

The modules in here run on whatever Python 3.8 or newer the worker has, with its standard library
alone; they import nothing else of tpuctl. Some of them serve this side of the connection too.
"""
