"""Other engines, and ours as a server, as contestants of the benches."""
