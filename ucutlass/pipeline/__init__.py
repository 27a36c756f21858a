"""A pipeline compiled as one unit: its stages at concrete extents, their order and their memory."""
