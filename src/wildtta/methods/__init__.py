"""One file per method. ``base`` says what a method is, ``gradient`` what those that take gradient steps share."""
