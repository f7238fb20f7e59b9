"""What the benches share: samples, timing, machines, tables, plots, shapes, random weights."""
