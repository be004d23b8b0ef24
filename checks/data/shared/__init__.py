"""What both data checks use: the call of the user's function, the sampler chain of a loader, random generators."""
