"""The API of users: sharing begins and ends, cells, blocks of iterations, the waiting line."""
