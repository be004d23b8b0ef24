"""What preflight knows about NCCL: configuration files, versions, rules for interfaces and HCAs, its log and RAS."""
