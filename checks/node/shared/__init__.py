"""Shared by several node checks: free space on a file system."""
