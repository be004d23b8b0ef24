"""Shared by the data checks: calling the user's function, a loader's sampler chain, random generators."""
