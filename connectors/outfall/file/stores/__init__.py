"""The directory of the files: on a disk, in an object store or in HDFS."""
