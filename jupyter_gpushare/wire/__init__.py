"""The traffic between processes: messages, their framing, connections and credentials."""
