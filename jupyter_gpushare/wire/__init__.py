"""What travels between processes: messages, their framing, connections and credentials."""
