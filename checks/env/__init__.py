"""How the job was started, and what its processes were given."""
