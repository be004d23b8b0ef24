"""Types of file systems, as named in /proc/self/mountinfo: which are local to this node, and which are served."""

LOCAL = {
    "aufs", "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuse.fuse-overlayfs",
    "fuse.mergerfs", "fuse.ntfs-3g", "fuse.squashfuse", "fuse.unionfs", "fuseblk", "iso9660", "jfs", "nilfs2", "ntfs3",
    "overlay", "reiserfs", "rootfs", "squashfs", "udf", "vfat", "xfs", "zfs",
}  # fmt: skip
"""On a disk of this node. All other types may be shared."""
MEMORY = {"devtmpfs", "ramfs", "tmpfs"}
SERVED = {
    "beegfs", "beegfs_nodev", "ceph", "cifs", "fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs", "gpfs",
    "lustre", "nfs", "nfs4", "orangefs", "panfs", "pvfs2", "smb3", "wekafs",
}  # fmt: skip
"""All clients of one export see the same files. For other types that is not known: virtiofs and 9p show a folder of
the machine that hosts a virtual machine, and most clients of object stores cache a folder's list for a while."""
