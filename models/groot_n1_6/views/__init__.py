"""Camera views: from uint8 frames of any size to the pixels that the tower sees."""
