"""Parts of a service that orders jobs on an engine which launches them. Nothing calls them yet."""
