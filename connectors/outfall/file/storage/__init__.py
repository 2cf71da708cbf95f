"""Where files lie: a directory on a disk, or one in an object store or in HDFS."""
