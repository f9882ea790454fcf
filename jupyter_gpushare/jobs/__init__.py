"""Jobs of a cluster, as the program that submits them knows them."""
