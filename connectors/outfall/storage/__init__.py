"""What sinks that store files or objects do alike: names, markers, first contact, rolling."""
