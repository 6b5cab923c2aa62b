"""TPU generations, accelerator types, machine types and prices: dated data, and its reader."""
