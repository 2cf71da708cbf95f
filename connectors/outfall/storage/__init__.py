"""What sinks that store files or objects do alike. They themselves hold only what differs between disks and stores.

```
sink                what all of them say of themselves: they only add files, each row in them once
names               of what attempts write, and of what readers skip
marker              what stands in a marker; how it is written safely is the affair of each store
first_contact       whose data is at a target, and whether `on_existing` puts up with it
rolling             when a file or an object is closed and the next one begun
```
"""
