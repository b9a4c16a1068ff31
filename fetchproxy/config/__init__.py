"""Every setting: declared once, loaded from four places, refused where it is unknown."""
