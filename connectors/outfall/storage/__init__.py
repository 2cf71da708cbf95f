"""Shared by the sinks that store files or objects; the tables share the writers and the names.

```
sink                the base class: these sinks only add files, and write each row exactly once
names               the names of files and objects of attempts, and of paths that readers skip
options             the options that all of them have
layout              how the files of a directory are read together: stored there, and compared before an epoch begins
columns             the columns in that layout, and which changes of them readers unite
writer              the writer of an attempt: one open file or object per partition, rolled and bounded
commit              the committer of staged files and objects, over what a store says of one of them
rolling             the bounds at which a file or an object is closed and the next one begins
```
"""
