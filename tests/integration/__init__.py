"""With the real libraries, in place of classes of their shape."""
