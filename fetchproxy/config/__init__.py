"""The settings: each is declared once, loaded from four places, and refused if unknown."""
