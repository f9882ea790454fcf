"""Jobs of a cluster, in the program that submits them."""
