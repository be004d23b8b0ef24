"""What preflight knows of NCCL: configuration files, versions, rules for interfaces and HCAs, its log and RAS."""
