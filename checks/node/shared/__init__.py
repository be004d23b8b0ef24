"""What several checks of a node use: free space on a file system, the limits of this process."""
