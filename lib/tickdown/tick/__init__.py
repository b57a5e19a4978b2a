"""One tick in a straight line; the shortcut of an idle one; last words."""
